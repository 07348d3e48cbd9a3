"""Commands on moments: sentences, JSON contract, exit codes, bad input."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedgram as package
from fedgram import Moments, Penalty, correct, explain, predict
from fedgram._util.files import write_json
from fedgram.data.datasets import registry
from fedgram.theory.geometry import psd
from tests.helpers.command import fedgram

EXAMPLE = Path(__file__).parents[2] / "examples" / "three_sites.csv"
DATA = [str(EXAMPLE), "--client", "site", "--targets", "east,north"]
LAMBDA = ["--lambda-h", "0.1", "--lambda-w", "0.1"]


@pytest.fixture(scope="module")
def moments_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("moments") / "moments.json"
    done = fedgram("moments", *DATA, "-o", path)
    assert done.returncode == 0, done.stderr
    assert "768 rows of 3 clients" in done.stdout
    return path


def printed(*arguments):
    done = fedgram(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_moments_are_those_of_the_rows(moments_file):
    rows = np.genfromtxt(EXAMPLE, delimiter=",", skip_header=1, dtype=None, encoding="utf-8")
    read = Moments.load(moments_file)
    assert read.clients == ("coast", "ridge", "valley")
    for m, name in enumerate(read.clients):
        values = np.array([(row[1], row[2]) for row in rows if row[0] == name])
        np.testing.assert_allclose(read.mean[m], values.mean(axis=0), atol=1e-14)
        np.testing.assert_allclose(read.covariance[m], np.cov(values.T, bias=True), rtol=1e-12)
    assert printed("moments", *DATA) == json.loads(moments_file.read_text())


def test_sites_write_their_own_moments_and_files_are_joined(moments_file, tmp_path):
    for name in ("coast", "ridge", "valley"):
        own = [EXAMPLE, "--site", name, "--where", f"site = '{name}'", "--targets", "east,north"]
        done = fedgram("moments", *own, "-o", tmp_path / f"{name}.json")
        assert done.stdout == f"Wrote {tmp_path / f'{name}.json'}: 2 targets, 256 rows of 1 client.\n"
    files = sorted(tmp_path.iterdir())
    joined, whole = printed("predict", *files), printed("predict", moments_file)
    assert [client["name"] for client in joined["clients"]] == ["coast", "ridge", "valley"]
    assert joined["gap"]["relative"] == pytest.approx(whole["gap"]["relative"], rel=1e-12)
    alone = fedgram("predict", files[0])
    assert (alone.returncode, alone.stdout) == (2, "")
    assert (
        "at least two clients, but there is only 'coast'. Add the moments or the rows of others"
        in alone.stderr
    )
    weighted = printed("moments", moments_file, "--weights", "1,2,3")
    files[0].write_text(json.dumps(weighted))
    assert "has client weights, which cannot be merged" in fedgram("predict", *files[:2]).stderr


@pytest.fixture
def folder_of_moments(moments_file, tmp_path):
    """A moments file of each client, with its targets in another order at one of them."""
    whole = Moments.load(moments_file)
    for m, name in enumerate(whole.clients):
        order = [1, 0] if name == "valley" else [0, 1]
        own = Moments(whole.count[m : m + 1], whole.mean[m : m + 1, order],
                      whole.covariance[m : m + 1][:, order][..., order], name,
                      [whole.targets[c] for c in order])  # fmt: skip
        (tmp_path / "in" / name).mkdir(parents=True)
        own.save(tmp_path / "in" / name / "moments.JSON")
    return tmp_path / "in"


@pytest.mark.parametrize("within", ["", "*/*.JSON", "**/moments.*"])
def test_a_folder_or_a_glob_stands_for_moments_files(moments_file, folder_of_moments, within):
    assert printed("moments", folder_of_moments / within) == json.loads(moments_file.read_text())
    read = folder_of_moments / "coast" / "moments.JSON"
    assert (
        "Cannot overwrite the input file" in fedgram("moments", folder_of_moments / within, "-o", read).stderr
    )


def test_a_folder_with_tables_stands_for_these(moments_file, folder_of_moments):
    (folder_of_moments / "rows.csv").write_bytes(EXAMPLE.read_bytes())
    assert "needs --targets" in fedgram("moments", folder_of_moments).stderr
    assert printed("moments", folder_of_moments, *DATA[1:]) == json.loads(moments_file.read_text())


def test_a_file_that_is_named_twice_counts_once(moments_file):
    once = json.loads(moments_file.read_text())
    same = moments_file.parent / "." / ".." / moments_file.parent.name / moments_file.name
    assert printed("moments", moments_file, moments_file, same) == once
    assert printed("moments", EXAMPLE.parent / ".." / "examples" / EXAMPLE.name, *DATA) == once


@pytest.mark.parametrize("order", [[0, 1], [1, 0]], ids=["as it is", "targets in another order"])
@pytest.mark.parametrize("name", ["coast", "shore"])
def test_a_copy_of_a_client_in_another_file_is_refused(moments_file, tmp_path, name, order):
    whole = Moments.load(moments_file)
    own = Moments(whole.count[:1], whole.mean[:1, order], whole.covariance[:1][:, order][..., order], name,
                  [whole.targets[c] for c in order])  # fmt: skip
    own.save(tmp_path / "copy.json")
    done = fedgram("predict", moments_file, tmp_path / "copy.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"fedgram: Client '{name}' in '{tmp_path / 'copy.json'}' has the same count, mean and covariance as "
        f"client 'coast' in '{moments_file}'. Remove the copy.\n"
    )
    replace(own, count=own.count + 1).save(tmp_path / "copy.json")
    assert fedgram("predict", moments_file, tmp_path / "copy.json").returncode == 0


def test_predict_prints_the_documented_object(moments_file):
    document = printed("predict", moments_file, *LAMBDA)
    prediction = predict(Moments.load(moments_file), Penalty(0.1, 0.1))
    gap = explain(prediction)
    assert document["targets"] == ["east", "north"]
    assert document["penalty"] == {"features": 0.1, "head": 0.1}
    assert document["fully_active"] is True
    for m, client in enumerate(document["clients"]):
        assert client["name"] == prediction.moments.clients[m]
        assert client["weight"] == prediction.moments.client_weights[m]
        assert client["active"] is True
        assert client["margin"] == prediction.activity.margin[m]
        assert client["loss_optimum"] == prediction.loss_optimum[m]
        np.testing.assert_array_equal(client["gram"], prediction.grams[m])
    star = document["barycenter"]
    assert set(star) == {"gram", "residual", "iterations", "converged"}
    assert star["converged"] is True
    np.testing.assert_array_equal(star["gram"], prediction.barycenter.gram)
    np.testing.assert_array_equal(document["within"], prediction.within)
    np.testing.assert_array_equal(document["centralized"], prediction.centralized)
    numbers = document["gap"]
    assert [numbers["mean"], numbers["covariance"], numbers["averaging"]] == gap.traces.tolist()
    assert numbers["trace"] == gap.trace
    assert numbers["relative"] == gap.relative
    assert numbers["pairwise_dispersion"] == gap.dispersion
    assert "trajectory" not in document


def test_predict_takes_data_directly(moments_file):
    assert printed("predict", *DATA, *LAMBDA) == printed("predict", moments_file, *LAMBDA)


def test_predict_takes_the_name_of_a_dataset():
    found = printed("predict", "beijing-stations")
    assert len(found["clients"]) == 12
    assert found["targets"] == ["PM2.5", "NO2"]


def test_trajectory_from_an_initial_gram(moments_file, tmp_path):
    initial = tmp_path / "initial.json"
    initial.write_text("[[2.0, 0.1], [0.1, 1.0]]")
    path = printed("predict", moments_file, *LAMBDA, "--rounds", 5, "--initial", initial)["trajectory"]
    expected = predict(Moments.load(moments_file), Penalty(0.1, 0.1)).trajectory([[2.0, 0.1], [0.1, 1.0]], 5)
    np.testing.assert_allclose(path, expected, rtol=1e-14)
    assert len(path) == 6


def test_a_proximal_weight_has_its_own_limit_and_rounds(moments_file):
    prediction = predict(Moments.load(moments_file), Penalty(0.1, 0.1))
    document = printed("predict", moments_file, *LAMBDA, "--proximal", 0.05, "--rounds", 3)
    limit = prediction.proximal_limit(0.05)
    np.testing.assert_allclose(document["proximal"]["gram"], limit, rtol=1e-13)
    assert document["proximal"]["weight"] == 0.05
    np.testing.assert_allclose(document["trajectory"], prediction.trajectory(np.eye(2), 3, 0.05), rtol=1e-13)
    shown = fedgram("predict", moments_file, *LAMBDA, "--proximal", "0.05").stdout
    away = psd.relative_error(limit, prediction.barycenter.gram)
    assert "Gram matrix with the proximal weight 0.05:" in shown
    assert f"ends {away:.1%} away from G_⋆, the limit for small weights" in " ".join(shown.split())
    assert "proximal" not in printed("predict", moments_file, *LAMBDA)
    refused = fedgram("predict", moments_file, "--proximal", "0")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "The proximal weight must be positive, not 0.0." in refused.stderr


def test_of_very_many_rounds_the_first_and_last_are_shown(moments_file):
    shown = fedgram("predict", moments_file, *LAMBDA, "--rounds", 3000).stdout
    rounds = re.findall(r"^ +(\d+) +\d\.\d{3}e", shown, flags=re.MULTILINE)
    assert rounds == [str(t) for t in (*range(25), *range(2976, 3001))]
    assert shown.count("...") == 1


def test_links_are_followed_and_pipes_are_written_to(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    write_json(tmp_path / "link.json", [1])
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text()) == [1]
    os.mkfifo(tmp_path / "pipe")
    end = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_json(tmp_path / "pipe", [2])
    assert json.loads(os.read(end, 99)) == [2]
    os.close(end)
    assert (tmp_path / "pipe").is_fifo()


def test_correct_prints_and_writes_the_documented_object(moments_file, tmp_path):
    initial, output = tmp_path / "initial.json", tmp_path / "correction.json"
    initial.write_text("[[2.0, 0.1], [0.1, 1.0]]")
    document = printed(
        "correct", moments_file, *LAMBDA, "--strength", 0.9, "--initial", initial, "-o", output
    )
    moments = Moments.load(moments_file)
    correction = correct(moments, Penalty(0.1, 0.1), 0.9)
    assert document == json.loads(output.read_text())
    assert document["strength"] == 0.9
    assert document["units"] == {"east": "east", "north": "north"}
    assert document["standardized_by"] is None
    np.testing.assert_array_equal(document["pooled_mean"], moments.pooled.mean)
    np.testing.assert_array_equal(document["pooled_covariance"], moments.pooled.covariance)
    np.testing.assert_array_equal(document["centralized"], correction.centralized)
    np.testing.assert_array_equal([c["gram"] for c in document["clients"]], correction.grams)
    np.testing.assert_array_equal([c["mean_offset"] for c in document["clients"]], moments.offset)
    factor = psd.factor(np.array([[2.0, 0.1], [0.1, 1.0]]))
    np.testing.assert_array_equal(document["after_one_round"], correction.after_round(factor))


@pytest.mark.parametrize("has_limit", [True, False])
def test_a_standardized_correction_says_by_what(tmp_path, has_limit):
    """A client divides its targets by `standardized_by`, then everything else has the same unit."""
    spread = [4.0, 900.0] if has_limit else [4.0, 0.0]  # without one direction, averaging has no limit
    moments = Moments([9, 9], [[0.0, -30.0], [0.0, 30.0]], [np.diag(spread)] * 2, targets=["dose", "CO"])
    moments.save(tmp_path / "moments.json")
    options = ["--standardize", "--units", "CO=mg", "-o", tmp_path / "correction.json"]
    document = printed("correct", tmp_path / "moments.json", *options)
    assert document == json.loads((tmp_path / "correction.json").read_text())
    assert document["units"] == {"dose": "dose", "CO": "mg"}
    deviation = np.array(document["standardized_by"])
    np.testing.assert_allclose(deviation, [2, np.sqrt(900 + spread[1])])
    assert (document["effects"] is None) is not has_limit
    pooled = moments.pooled
    np.testing.assert_allclose(deviation * document["pooled_mean"], pooled.mean)
    np.testing.assert_allclose(
        np.outer(deviation, deviation) * document["pooled_covariance"], pooled.covariance, atol=1e-12
    )
    offsets = [client["mean_offset"] for client in document["clients"]]
    np.testing.assert_allclose(deviation * offsets, moments.offset)


def test_explain_prints_matrices_and_shares(moments_file):
    document = printed("explain", moments_file, *LAMBDA)
    gap = explain(predict(Moments.load(moments_file), Penalty(0.1, 0.1)))
    for term in ("mean", "covariance", "averaging"):
        np.testing.assert_array_equal(document["terms"][term], getattr(gap, term))
    assert sum(client["share"] for client in document["clients"]) == pytest.approx(1)
    assert document["chain_holds"] is True


def test_the_words_say_what_happens_and_what_to_do(moments_file):
    said = fedgram("predict", moments_file, *LAMBDA).stdout
    assert "Federated averaging will end 58% away from centralized training" in said
    assert (
        "Causes of the gap: different client means 68%, different client covariances 19%, averaging heads "
        "instead of Gram matrices 13%." in said
    )
    assert "To remove the gap, each client sends its mean and covariance once" in said
    explained = fedgram("explain", moments_file, *LAMBDA).stdout
    assert re.search(r"coast: 50% \(\d+% to \d+%\), mainly different client means", explained)
    corrected = fedgram("correct", moments_file, *LAMBDA).stdout
    assert "Each client sends 6 numbers once" in corrected


def test_a_share_that_is_only_rounding_is_none(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 2)) @ [[1.0, 0.4], [0.0, 0.7]]
    for distance in (1.0, 1e-3):
        moved = {str(m): rows + m * distance * np.array([1.0, 0.3]) for m in range(3)}
        Moments.from_arrays(moved).save(tmp_path / "moments.json")
        said = " ".join(fedgram("explain", tmp_path / "moments.json").stdout.split())
        assert "different client means 100%, different client covariances 0%" in said
        assert "averaging heads instead of Gram matrices 0%." in said


def test_weights_in_three_spellings(moments_file):
    equal = printed("predict", moments_file, *LAMBDA, "--weights", "equal")
    assert [client["weight"] for client in equal["clients"]] == pytest.approx([1 / 3] * 3)
    for spelling in ("1,2,1", "valley=1,coast=1,ridge=2"):
        document = printed("predict", moments_file, *LAMBDA, "--weights", spelling)
        assert [client["weight"] for client in document["clients"]] == [0.25, 0.5, 0.25]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_figures_are_drawn(moments_file, tmp_path, suffix):
    path = tmp_path / f"figure.{suffix}"
    assert fedgram("explain", moments_file, *LAMBDA, "--figure", path).returncode == 0
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(start)


@pytest.mark.parametrize("targets", [3, 5])
def test_figures_of_more_targets(tmp_path, targets):
    rng = np.random.default_rng(0)
    data = [rng.standard_normal((40, targets)) @ rng.standard_normal((targets, targets)) for _ in range(4)]
    Moments.from_arrays(data).save(tmp_path / "moments.json")
    done = fedgram("predict", tmp_path / "moments.json", "--figure", tmp_path / "figure.png")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_of_one_target_the_terms_alone_are_drawn(tmp_path):
    data = [str(EXAMPLE), "--client", "site", "--targets", "north"]
    done = fedgram("explain", *data, *LAMBDA, "--figure", tmp_path / "figure.png")
    assert done.returncode == 0, done.stderr
    assert "By target: north 100%." in done.stdout
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_clients_that_agree_leave_nothing_to_explain(tmp_path):
    rows = np.random.default_rng(0).standard_normal((40, 2)) @ [[1.0, 0.4], [0.0, 0.7]]
    Moments.from_arrays(dict.fromkeys("abc", rows)).save(tmp_path / "moments.json")
    said = fedgram("explain", tmp_path / "moments.json", "--figure", tmp_path / "figure.png").stdout
    assert "will match centralized training" in said
    assert "bounds" not in said
    assert "different client means" not in said


def test_not_fully_active_is_flagged(moments_file):
    document = printed("predict", moments_file, "--lambda-h", 0.5, "--lambda-w", 0.4)
    assert document["fully_active"] is False
    assert [client["active"] for client in document["clients"]] == [False, False, True]
    assert "Client 'coast' is not fully active" in document["notes"][0]
    said = fedgram("predict", moments_file, "--lambda-h", 0.5, "--lambda-w", 0.4).stdout
    assert "Note: Client 'coast' is not fully active" in said


@pytest.fixture(scope="module")
def many_clients(tmp_path_factory):
    """40 clients, of which the last 30 are not fully active."""
    variance = np.where(np.arange(40) < 10, 2.0, 1e-3)[:, None, None] * np.eye(2)
    path = tmp_path_factory.mktemp("many") / "moments.json"
    Moments([20] * 40, np.random.default_rng(0).standard_normal((40, 2)), variance).save(path)
    return path


@pytest.mark.parametrize("command", [["predict"], ["explain"], ["correct", "--strength", "0.001"]])
def test_of_many_clients_ten_are_shown_and_json_has_all(many_clients, command):
    name, *options = command
    said = fedgram(name, many_clients, *LAMBDA, *options).stdout
    assert "  and 30 more clients (--all shows them)\n" in said
    assert said.count("is not fully active: ") == 10
    assert "Note: The same applies to 20 more clients (--all shows them).\n" in said
    assert len(said.splitlines()) < 70
    everything = fedgram(name, many_clients, *LAMBDA, *options, "--all").stdout
    assert everything.count("is not fully active: ") == 30
    assert "--all" not in everything
    assert all(f"client {number} " in everything for number in range(1, 41))
    document = printed(name, many_clients, *LAMBDA, *options)
    assert sum("is not fully active: " in note for note in document["notes"]) == 30
    assert len(document["clients"]) == 40


def test_notes_of_all_clients_are_not_cut(many_clients):
    for command in ("predict", "explain"):
        assert "Note: Inactive directions were clipped" in fedgram(command, many_clients, *LAMBDA).stdout


@pytest.mark.parametrize(
    ("strength", "words"), [(0, "Strength 0 leaves the whole gap."), (0.5, "leaves part of the gap.")]
)
def test_less_than_the_whole_correction_promises_no_centralized_predictions(moments_file, strength, words):
    said = fedgram("correct", moments_file, *LAMBDA, "--strength", strength).stdout
    assert words in said
    assert "A feature offset gives centralized predictions at strength 1 only." in said
    assert "also adds" not in said
    whole = fedgram("correct", moments_file, *LAMBDA).stdout
    assert "To predict like centralized training, each client also adds" in whole
    assert "leaves" not in whole


BAD_CALLS = [
    (["predict", "nowhere.json"], "No such file or folder: 'nowhere.json'"),
    (["predict", "beijing-station"], "dataset 'beijing-station'; did you mean 'beijing-stations'?"),
    (["predict", "gaussian", "nowhere.json"], "Cannot combine the dataset 'gaussian' with other data."),
    (["predict", "nowhere/*.json"], "No file matches 'nowhere/*.json'"),
    (["predict", "{examples}", "{moments}"], "Run 'fedgram moments' on the table first"),
    (["moments", "{moments}", "-o", "copy.csv"], "must end in .json: 'copy.csv'"),
    (["predict", "nowhere.csv", "--client", "a", "--targets", "b,c"], "nowhere.csv"),
    (["predict", "{example}"], "needs --targets"),
    (["predict", "{example}", "--targets", "east,north"], "needs --client (or --site)"),
    (["predict", "{moments}", "{example}"], "Run 'fedgram moments' on the table first"),
    (["predict", "{example}", "--client", "site", "--targets", ","], "needs --targets"),
    (["predict", "{example}", "--client", "site"], "needs --targets"),
    (["predict", "{example}", "--client", "site", "--targets", "east,nord"], "nord"),
    (["predict", "{example}", "--client", "sight", "--targets", "east,north"], "sight"),
    (["predict", "{moments}", "--client", "site"], "--client applies to tables, not to moments files"),
    (["explain", "beijing-stations", "--client", "site"], "--client applies to tables, not to datasets"),
    (["explain", "{moments}", "--where", "year = 2016"], "--where applies to tables"),
    (["correct", "{moments}", "--drop-missing"], "--drop-missing applies to tables"),
    (["moments", "{moments}", "--robust"], "--robust applies to tables"),
    (["explain", "{moments}", "--time", "hour"], "--time applies to tables"),
    (["explain", "{moments}", "--units", "m,s,kg"], "2 targets but 3 units"),
    (["correct", "{moments}", "--units", "west=m"], "Unknown target 'west' in --units"),
    (["explain", "{moments}", "--units", "east=m,s"], "names the target of some units only: 'east=m,s'"),
    (["explain", "{moments}", "--units", "east=m,east =s"], "Target 'east' has more than one unit"),
    (["explain", "{moments}", "--resamples", "5"], "must be 0 for none, or 100 or more, not 5."),
    (["explain", "{moments}", "--resamples", "-3"], "must be 0 for none, or 100 or more, not -3."),
    (["predict", "{moments}", "--lambda-h", "0"], "features (lambda_h) must be a positive number"),
    (["predict", "{moments}", "--lambda-w", "-1"], "head (lambda_w) must be a positive number"),
    (["predict", "{moments}", "--lambda-h", "many"], "not a valid float"),
    (["predict", "{moments}", "--lambda-h", "9", "--lambda-w", "9"], "No client is active"),
    (["predict", "{moments}", "--weights", "1,2"], "3 clients but 2 weights"),
    (["predict", "{moments}", "--weights", "1,0,2"], "weight of client 'ridge'"),
    (["predict", "{moments}", "--weights", "1,ridge=2,3"], "'ridge' must be a positive number, not 'r"),
    (["predict", "{moments}", "--weights", "a=1,b=2,c=3"], "Unknown client 'a'"),
    (["predict", "{moments}", "--weights", "coast=1,ridge=2"], "Client 'valley' has no weight"),
    (["predict", "{moments}", "--weights", "coast=1,ridge=2,valley=1,coast=9"], "'coast' has more than one"),
    (["predict", "{moments}", "--initial", "{moments}", "--rounds", "2"], "must be a list of equally long"),
    (["predict", "{moments}", "--initial", "{moments}"], "needs --rounds"),
    (["predict", "{moments}", "--rounds", "-1"], "0 or more"),
    (["predict", "{moments}", "--figure", "figure.jpeg"], "must end in"),
    (["predict", "{moments}", "--figure", "nowhere/figure.png"], "its folder does not exist. Create it"),
    (["correct", "{moments}", "--strength", "2"], "between 0 and 1"),
    (["correct", "{moments}", "--lambda-h", "9999"], "active in no direction"),
    (["correct", "{moments}", "-o", "nowhere/correction.json"], "its folder does not exist. Create it"),
    (["correct", "{moments}", "-o", "."], "A correction file must end in .json: '.'"),
    (["correct", "{moments}", "-o", "copy.csv"], "A correction file must end in .json: 'copy.csv'"),
    (["moments", "{moments}", "-o", "{moments}"], "Cannot overwrite the input file"),
    (["correct", "{moments}", "-o", "{moments}"], "Cannot overwrite the input file"),
    (["predict", "{moments}", "--figure", "{moments}"], "must end in .png, .svg or .pdf"),
    (
        ["moments", "{examples}", "--client", "site", "--targets", "east,north", "-o", "{example}"],
        "A moments file must end in .json",
    ),
    (["predict"], "Missing argument"),
    (["foretell"], "No such command"),
]


@pytest.mark.parametrize(
    ("call", "words"), BAD_CALLS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
@pytest.mark.parametrize("as_json", [False, True], ids=["words", "json"])
def test_bad_calls_exit_with_2_and_one_sentence(moments_file, tmp_path, call, words, as_json):
    places = {"example": EXAMPLE, "examples": f"{EXAMPLE.parent}/three*.csv", "moments": moments_file}
    filled = [part.format(**places) for part in call]
    before = [file.read_bytes() for file in (EXAMPLE, moments_file)]
    done = fedgram(*filled, *(["--json"] if as_json else []), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    message = json.loads(done.stderr)["error"]["message"] if as_json else done.stderr.strip()
    assert words in message
    assert "\n" not in message
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert [file.read_bytes() for file in (EXAMPLE, moments_file)] == before


def test_names_with_commas_stand_in_quotes(tmp_path):
    rows = "".join(f'"{name}",{i % 5},{i % 3}\n' for name in ("a, b", "c") for i in range(9))
    (tmp_path / "rows.csv").write_text('site,"size, cm",mass\n' + rows)
    data = [tmp_path / "rows.csv", "--client", "site", "--targets", '"size, cm", mass']
    document = printed("predict", *data, "--weights", '"a, b=3", c=1')
    assert document["targets"] == ["size, cm", "mass"]
    assert [client["weight"] for client in document["clients"]] == [0.75, 0.25]


def test_json_errors_name_the_client_and_the_field(tmp_path):
    document = {
        "format": "fedgram-moments/1",
        "targets": ["a", "b"],
        "clients": [
            {"name": "x", "count": 9, "mean": [0, 0], "covariance": [[1, 0], [0, 1]]},
            {"name": "y", "count": 9, "mean": [0, 0], "covariance": [[1, 2], [2, 1]]},
        ],
    }
    (tmp_path / "moments.json").write_text(json.dumps(document))
    error = json.loads(fedgram("predict", tmp_path / "moments.json", "--json").stderr)["error"]
    assert (error["client"], error["field"]) == ("y", "covariance")


def test_every_command_has_help_that_teaches():
    for command in ("moments", "predict", "explain", "correct"):
        done = fedgram(command, "--help")
        assert done.returncode == 0
        assert "--client" in done.stdout
        assert "--json" in done.stdout


@pytest.mark.parametrize("group", [[], ["runs"], ["data"]])
def test_without_arguments_the_help_is_all_that_is_said(group):
    done = fedgram(*group)
    assert done.returncode == 2
    assert "Usage: " in done.stdout
    assert done.stderr == ""


def test_the_module_starts_without_heavy_packages():
    """In a process of its own."""
    heavy = "{'duckdb', 'matplotlib', 'pandas', 'scipy.optimize', 'torch'}"
    code = (
        "import atexit, runpy, sys\n"
        f"atexit.register(lambda: print(sorted({heavy} & set(sys.modules))))\n"
        "runpy.run_module('fedgram', run_name='__main__')"
    )
    command = [sys.executable, "-W", "error", "-c", code, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"fedgram {package.__version__}\n[]\n"


def test_the_version_is_that_of_the_package():
    assert fedgram("--version").stdout == f"fedgram {package.__version__}\n"


@pytest.fixture
def table_of_sites(tmp_path):
    """Write 60 rows of two targets at three sites; the second target has large numbers."""

    def write(name="rows.csv", rows=60, changes=()):
        rng = np.random.default_rng(0)
        lines = [
            [site, hour, f"{m + rng.standard_normal():.6f}", f"{1000 * m + 500 * rng.standard_normal():.3f}"]
            for m, site in enumerate("abc")
            for hour in range(rows)
        ]
        for line, column, value in changes:
            lines[line][column] = value
        text = "\n".join(",".join(map(str, line)) for line in [["site", "hour", "dose", "CO"], *lines])
        (tmp_path / name).write_text(text + "\n")
        return [tmp_path / name, "--client", "site", "--targets"]

    return write


def test_explain_says_first_what_happens_to_predictions_and_when(table_of_sites):
    said = fedgram("explain", *table_of_sites(), "dose", "--units", "mg", "--resamples", 200).stdout
    first, second, third, *_ = said.splitlines()
    assert re.match(
        r"If every site trains until it fits its rows, federated averaging with a shared bias will "
        r"under-predict dose at c by \d\.\d+ mg on average \(95% interval 0\.\d+ to 1\.\d+\)\.",
        first,
    )
    assert second.startswith("Keep biases private, or send means and covariances once")
    assert "away from centralized training (95% interval" in third
    assert "not an accuracy" in third
    assert "more than chance" in said
    assert "Intervals come from 200 resamples of rows" in said
    assert "dose [mg]" in said
    named = fedgram("explain", *table_of_sites(), "dose", "--resamples", 0).stdout
    assert "(unit of dose) on average." in named
    assert "interval" not in named


def test_a_site_with_few_rows_is_not_what_explain_begins_with(tmp_path):
    """Two rows that happen to be alike have a narrow interval far from 0."""
    rng, table = np.random.default_rng(0), tmp_path / "sites.csv"
    rows = [("oslo", y) for y in rng.normal(0, 1, 60)] + [("bergen", y) for y in rng.normal(1.5, 1, 60)]
    rows += [("alta", 9.0), ("alta", 9.1)]
    table.write_text("site,y\n" + "".join(f"{site},{y}\n" for site, y in rows))
    call = ("explain", table, "--client", "site", "--targets", "y", "--resamples", 200)
    first = fedgram(*call).stdout.splitlines()[0]
    assert re.search(r"will (over|under)-predict y at (oslo|bergen) by", first)
    lines = [f"{site},{40 * y if site == 'oslo' else y}\n" for site, y in rows if site != "bergen"]
    table.write_text("site,y\n" + "".join(lines))
    assert "differs clearly from 0 where there are enough rows." in fedgram(*call).stdout


def test_an_estimate_outside_its_interval_is_explained(tmp_path):
    rng = np.random.default_rng(1)
    rows = [(f"s{m}", 1.6 * (m % 2) + rng.standard_normal()) for m in range(60) for _ in range(4)]
    path = tmp_path / "rows.csv"
    path.write_text("site,y\n" + "".join(f"{site},{value:.6f}\n" for site, value in rows))
    call = ("explain", path, "--client", "site", "--targets", "y", "--resamples", 200)
    found = json.loads(fedgram(*call, "--json").stdout)
    assert found["intervals"]["relative"][1] < found["gap"]["relative"]
    assert "Chance differences between few rows add to this estimate" in fedgram(*call).stdout


def test_explain_prints_effects_intervals_chance_and_warnings(table_of_sites):
    options = ["dose,CO", "--no-standardize", "--resamples", 200, "--units", "CO=µg/m³"]
    document = printed("explain", *table_of_sites(), *options)
    assert document["units"] == {"dose": "dose", "CO": "µg/m³"}
    assert document["standardized_by"] is None
    assert len(document["effects"]) == 6
    first = document["effects"][0]
    assert set(first) == {
        "client", "target", "mean_error", "rms_difference", "with_private_bias", "with_correction"
    }  # fmt: skip
    assert first["with_private_bias"]["mean_error"] == 0
    assert first["with_correction"]["rms_difference"] == 0
    found = document["intervals"]
    assert found["level"] == 0.95
    low, high = found["relative"]
    assert 0 <= low <= high
    assert all(len(found[name]) == 2 for name in ("mean", "covariance", "averaging"))
    assert len(found["client_shares"]) == 3
    assert {pair["target"] for pair in found["mean_errors"]} == {"dose", "CO"}
    assert set(document["chance"]) == {"median", "p_value"}
    assert document["warnings"] == []
    none = printed("explain", *table_of_sites(), "dose", "--resamples", 0)
    assert (none["intervals"], none["chance"]) == (None, None)


def test_targets_of_different_scales_are_standardized_by_default(table_of_sites):
    data = [*table_of_sites(), "dose,CO", "--resamples", 0]
    default, plain = printed("explain", *data), printed("explain", *data, "--no-standardize")
    assert default == printed("explain", *data, "--standardize")
    assert default["standardized_by"][1] > 100 * default["standardized_by"][0]
    assert plain["target_shares"][1] > 0.99
    assert 0.3 < default["target_shares"][1] < 0.7
    for one, other in zip(default["effects"], plain["effects"], strict=True):
        assert one["mean_error"] == pytest.approx(other["mean_error"], rel=1e-9, abs=1e-9)
    assert "Targets were divided by their scales (dose" in fedgram("explain", *data).stdout
    assert printed("predict", *data[:-2])["standardized_by"] is None


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ([], " --standardize"),
        (["--units", "CO=µg/m³"], " --standardize --units 'CO=µg/m³'"),
        (["--units", "mg"], " --standardize --units dose=mg,CO=mg"),
        (["--no-standardize"], ""),
        (["--no-standardize", "--units", "mg,ml"], " --units dose=mg,CO=ml"),
        (["--lambda-h", "0.05", "--robust"], " --lambda-h 0.05 --lambda-w 0.01 --robust --standardize"),
    ],
)
def test_the_next_command_has_the_scale_and_the_units(table_of_sites, options, flags):
    data = [*table_of_sites(), "dose,CO"]
    said = fedgram("explain", *data, "--resamples", 0, *options).stdout
    commands = re.findall(r"\((fedgram correct[^)]*)\)", said)
    assert commands == [f"fedgram correct{flags}"] * 2
    _, command, *more = shlex.split(commands[0])
    corrected = printed(command, *data, *more)
    explained = printed("explain", *data, "--resamples", 0, *options)
    for key in ("effects", "standardized_by", "units"):
        assert corrected[key] == explained[key]


def test_predict_names_the_next_command_with_its_scale(table_of_sites):
    said = fedgram("predict", *table_of_sites(), "dose,CO", "--standardize").stdout
    assert said.count("(fedgram correct --standardize)") == 2


def test_an_outlier_is_flagged_and_robust_moments_ignore_it(table_of_sites):
    clean = printed("explain", *table_of_sites(), "dose", "--resamples", 0)["gap"]["relative"]
    data = [*table_of_sites("bad.csv", changes=[(70, 2, 1e7)]), "dose", "--resamples", 0]
    document = printed("explain", *data)
    assert document["outliers"] == [{"client": "b", "target": "dose", "count": 1, "farthest": 1e7}]
    assert document["relative_without_outliers"] == pytest.approx(clean, rel=0.1)
    assert "1 value is far from all others at the same site, such as 1e+07" in document["warnings"][0]
    assert "Warning: 1 value is far" in fedgram("explain", *data).stdout
    robust = printed("explain", *data, "--robust")
    assert robust["gap"]["relative"] == pytest.approx(clean, rel=0.2)
    assert robust["warnings"][0].endswith("--robust clipped them.")
    moments = printed("moments", *data[:-2], "--robust")
    assert moments["clients"][1]["mean"][0] < 3


def test_few_rows_give_no_confident_answer(tmp_path):
    rng = np.random.default_rng(0)
    Moments.from_arrays([rng.standard_normal((5, 2)) for _ in range(4)]).save(tmp_path / "moments.json")
    said = fedgram("explain", tmp_path / "moments.json").stdout
    assert "The rows do not show that federated averaging will end away from centralized training" in said
    assert "have fewer than 10 rows per target" in said
    assert "will end" not in said.replace("will end away", "")
    assert "They assume normal targets and independent rows" in said


def test_intervals_that_take_long_are_left_out_and_said(tmp_path):
    rng = np.random.default_rng(0)
    Moments.from_arrays([rng.standard_normal((60, 20)) for _ in range(2)]).save(tmp_path / "moments.json")
    assert "--resamples 200 computes them" in fedgram("explain", tmp_path / "moments.json").stdout


def test_blocks_of_rows_are_resampled_in_order_of_time(table_of_sites):
    said = fedgram("explain", *table_of_sites(), "dose", "--time", "hour", "--resamples", 200).stdout
    assert "200 resamples of blocks of rows" in said


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (["01.02.2020", "02.02.2020"], "'hour' has 80 invalid times, first '01.02.2020' at site"),
        (["01-02-20", "02-02-20"], "'hour' has 80 invalid times, first '01-02-20' at site"),
        (["2020-02-01", ""], "'hour' has no time in 40 rows, the first at site 'a'. Fill"),
    ],
)
def test_times_that_do_not_order_rows_are_refused(tmp_path, times, words):
    lines = [f"{site},{times[n % 2]},{n % 7}" for site in "ab" for n in range(40)]
    (tmp_path / "table.csv").write_text("\n".join(["site,hour,dose", *lines]))
    found = fedgram(
        "explain", tmp_path / "table.csv", "--client", "site", "--targets", "dose", "--time", "hour"
    )
    assert found.returncode == 2
    assert words in found.stderr


def test_rows_of_a_rare_event_have_an_answer_without_an_interval(tmp_path):
    """Resamples without the event have no variance, so centralized training ends at zero there."""
    events = [f"{site},{int(n < rows)}" for site, rows in (("a", 1), ("b", 2)) for n in range(40)]
    (tmp_path / "table.csv").write_text("\n".join(["site,event", *events]))
    data = ["explain", tmp_path / "table.csv", "--client", "site", "--targets", "event"]
    document, said = printed(*data), fedgram(*data).stdout
    assert document["intervals"]["relative"] is None
    assert "nan" not in said


def test_correct_says_what_it_changes(moments_file):
    said = fedgram("correct", moments_file, *LAMBDA, "--units", "km").stdout
    assert "RMS difference" in said
    assert "north [km]" in said
    assert len(printed("correct", moments_file, *LAMBDA)["effects"]) == 6


def test_a_correction_needs_no_limit_without_it(tmp_path):
    """Each client is active in one direction only, the pooled data in both."""
    covariance = [np.diag([1.0, 0.0]), np.diag([1.0, 0.0])]
    Moments([9, 9], [[0.0, -3.0], [0.0, 3.0]], covariance).save(tmp_path / "moments.json")
    assert fedgram("predict", tmp_path / "moments.json").returncode == 2
    assert printed("correct", tmp_path / "moments.json")["effects"] is None


def test_a_dataset_has_effects_in_its_own_units():
    problem = registry.load("beijing-stations")
    scale = [problem.provenance["mean_and_deviation"][name][1] for name in problem.target_names]
    found = printed("explain", "beijing-stations", "--resamples", 0)
    assert found["standardized_by"] == pytest.approx(scale)
    errors = {(each["client"], each["target"]): each["mean_error"] for each in found["effects"]}
    offset = problem.moments.offset
    for m, client in enumerate(problem.clients):
        for c, target in enumerate(problem.target_names):
            assert errors[client, target] == pytest.approx(-offset[m, c] * scale[c], rel=1e-9)


def test_weights_in_the_files_of_single_clients_are_not_lost(tmp_path):
    files = []
    for name, weight in {"a": 1000, "b": 1}.items():
        client = {"name": name, "count": 40, "mean": [weight], "covariance": [[1.0]], "weight": weight}
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"format": "fedgram-moments/1", "targets": ["y"], "clients": [client]}))
        files.append(path)
    result = fedgram("predict", *files)
    assert (result.returncode, result.stdout) == (2, "")
    assert "has client weights, which cannot be merged" in result.stderr
    result = fedgram("moments", files[0], "--weights", "5")
    assert result.returncode == 2
    assert "--weights needs several clients." in result.stderr


def test_a_weak_correction_shows_no_effects_of_the_full_one(moments_file):
    full, weak = (fedgram("correct", moments_file, "--strength", each).stdout for each in (1, 0.5))
    assert "corrected error" in full
    assert "corrected error" not in weak


def test_offsets_of_targets_with_small_units_are_shown(tmp_path):
    path = tmp_path / "small.csv"
    rng, lines = np.random.default_rng(0), ["site,y,z"]
    lines += [
        f"{m},{1e-7 * (rng.normal() + m)},{1e7 * (rng.normal() + m)}" for m in range(2) for _ in range(9)
    ]
    path.write_text("\n".join(lines))
    said = fedgram("correct", path, "--client", "site", "--targets", "y,z").stdout
    (row,) = [line.split() for line in said.splitlines() if line.split()[:1] == ["0"]][-1:]
    assert float(row[1]) < 0
