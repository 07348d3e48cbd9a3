"""What network experiments ask for: runs, their cost, what is at hand, and what is trained together."""

from dataclasses import replace
from math import isclose

import pytest
from tools.paper_runs import QUEUE

from fedgram import InputError
from fedgram.cli.parsing import parse_epochs, parse_seeds
from fedgram.paper.launch.jobs import make_jobs
from fedgram.paper.launch.launch import run
from fedgram.paper.launch.plan import (
    RESMLP_STEP,
    RESNET18_STEP,
    Request,
    count_steps,
    estimate_cost,
    estimate_step_time,
    plan_experiments,
)
from fedgram.paper.networks.cohorts import ALIGNED, Condition
from fedgram.paper.networks.results import Results
from fedgram.paper.networks.scales import SCALES, get_scale
from fedgram.paper.networks.settings import ALL, IMAGES, SETTINGS, TABULAR, find_sources
from fedgram.paper.networks.studies.registry import STUDIES
from fedgram.paper.printing import cost_lines, list_rows
from fedgram.runs.procedure import Procedure
from fedgram.runs.train_config import TrainConfig
from tests.helpers.network_results import result_of

PAPER = SCALES["paper"]
EVERYTHING = {(name, larger): SETTINGS[name].sources[0] for name in ALL for larger in (False, True)}
COUNTS = {
    "dnn-main": 200, "dnn-means": 60, "dnn-epochs": 210, "dnn-rho": 210, "dnn-alignment": 204,
    "dnn-architecture": 51, "dnn-full-model": 45, "dnn-prediction": 45, "beyond-solved": 880,
    "beyond-prediction": 180,
}  # fmt: skip


def keys_of(name, scale=PAPER):
    return STUDIES[name].keys(scale, EVERYTHING)


def empty(tmp_path, **narrowed):
    """A request where no file is at hand."""
    return Request(tmp_path / "out", PAPER, data_dir=tmp_path / "data", **narrowed)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_the_runs_of_the_paper(name):
    keys = keys_of(name)
    assert len(keys) == len(set(keys)) == COUNTS[name]
    smoke = keys_of(name, SCALES["smoke"])
    assert 0 < len(smoke) < len(keys)
    assert {key.seed for key in smoke} == {0, 1}
    assert {key.backbone for key in smoke} <= {"resmlp-small", "resnet-small", "residual-cnn-small"}


def test_the_main_experiments_are_the_papers():
    keys = keys_of("dnn-main")
    assert {key.backbone for key in keys if key.setting in TABULAR} == {"resmlp"}
    assert {key.backbone for key in keys if key.setting in IMAGES} == {"resnet18"}
    assert {(key.epochs, key.rounds, key.larger) for key in keys} == {(4000, 8, False)}
    assert {key.procedure.name for key in keys} == {"ordinary", "proximal", "corrected", "proximal+corrected"}
    assert {key.epochs for key in keys_of("dnn-main", SCALES["reduced"])} == {400}


def test_studies_share_their_runs():
    main = set(keys_of("dnn-main"))
    assert set(keys_of("dnn-prediction")) < main
    assert len(main & set(keys_of("dnn-rho"))) == 60
    assert len(main & set(keys_of("dnn-alignment"))) == 96
    assert len(main & set(keys_of("dnn-epochs"))) == 30


def test_cost_is_models_times_steps_times_the_measured_time():
    key = Condition("ordinary").key("hopper", "hopper", 0, PAPER)
    assert count_steps(key) == 4 * 8 * 4000 * 4  # clients, rounds, epochs, minibatches of 256 of 1,000 rows
    assert count_steps(replace(key, procedure=Procedure(centralized=True))) == 8 * 4000 * 16
    larger = Condition("ordinary", 1000, larger=True).key("3dshapes", "3dshapes", 0, PAPER)
    assert count_steps(larger) == 8 * 8 * 1000 * 24
    cost = estimate_cost([key, key, replace(key, seed=1)])
    assert (cost.runs, cost.model_steps) == (2, 2 * count_steps(key))
    assert isclose(cost.hours * 3600, cost.model_steps * RESMLP_STEP)
    assert "of one H200" in str(cost)
    image = replace(key, setting="3dshapes", backbone="resnet34")
    assert isclose(estimate_cost([image]).hours * 3600, count_steps(image) * 2.02 * 1.94e-3)
    small, between = (replace(key, setting=name, backbone="resnet18") for name in ("cifar-geo", "mpiigaze"))
    assert estimate_step_time(small) == RESNET18_STEP[40 * 40] < estimate_step_time(between) < 2.66e-3
    assert str(estimate_cost([key])).startswith("1 run to train, ")
    assert estimate_cost([key]).trainings == 1
    assert str(estimate_cost([])) == "nothing left to train"


def test_the_cost_of_the_smoke_scale_counts_what_settings_share_once():
    scale = SCALES["smoke"]
    sources = {(name, larger): scale.source(name) for name, larger in EVERYTHING}
    small = estimate_cost(STUDIES["dnn-main"].keys(scale, sources))
    assert (small.runs, small.trainings, small.hours) == (80, 16, None)
    words = "80 small runs to train (16 trainings: settings share data), a minute on a CPU"
    assert str(small) == words


def test_stand_ins_are_taken_where_the_papers_data_is_missing(tmp_path):
    (tmp_path / "mujoco_hopper_ppo_stoch.parquet").touch()
    varieties = [("hopper", False), ("dsprites", False), ("mpiigaze", False), ("walker", False)]
    found = find_sources(varieties, tmp_path)
    assert {name: source.dataset for (name, _), source in found.sources.items()} == {
        "hopper": "hopper-rollouts", "dsprites": "sprites",
    }  # fmt: skip
    assert set(found.missing) == {("mpiigaze", False), ("walker", False)}
    assert "needs JAT's training episodes" in found.missing["walker", False]
    with_results = find_sources(varieties, tmp_path, [("walker", "walker-rollouts", False)])
    assert with_results.sources["walker", False].dataset == "walker-rollouts"


def test_missing_data_is_not_run_with_its_reason(tmp_path):
    (plan,) = plan_experiments([STUDIES["dnn-main"]], empty(tmp_path), Results())
    assert {key.setting for key in plan.keys} == {"dsprites"}  # drawn on the fly
    assert (len(plan.missing), plan.total, len(plan.not_run)) == (20, 200, 9)
    assert "Hopper is not run: The dataset 'hopper' needs" in "\n".join(plan.reasons)
    lines = "\n".join(cost_lines([plan]))
    assert "20 of 200 runs asked for, 0 of them finished" in lines
    assert "MPIIGaze is not run" in lines


def test_a_setting_asked_for_by_name_must_be_there(tmp_path):
    with pytest.raises(InputError, match="The dataset 'hopper' needs"):
        plan_experiments([STUDIES["dnn-main"]], empty(tmp_path, settings=("hopper",)), Results())


@pytest.mark.parametrize(
    ("narrowed", "words"),
    [
        ({"settings": ("hoper",)}, "Unknown setting 'hoper'; did you mean 'hopper'"),
        ({"settings": ("foo",)}, r"Unknown setting 'foo'\. Settings are beijing, swimmer"),
        ({"procedures": ("proximl",)}, "did you mean 'proximal'"),
        ({"procedures": ("solved",)}, "No run of dnn-main at the paper scale has these"),
        ({"seeds": (7,)}, "No run of dnn-main at the paper scale has these"),
    ],
)
def test_bad_names_are_refused(narrowed, words, tmp_path):
    with pytest.raises(InputError, match=words):
        plan_experiments([STUDIES["dnn-main"]], empty(tmp_path, **narrowed), Results())


def test_narrowed_to_some_settings_it_says_nothing_of_the_others(tmp_path):
    (plan,) = plan_experiments([STUDIES["dnn-main"]], empty(tmp_path, settings=("dsprites",)), Results())
    assert len(plan.not_run) == 9
    assert plan.reasons == []
    assert "is not run" not in "\n".join(cost_lines([plan]))


def test_the_preactivated_scale_changes_the_network_of_tables_alone():
    paper, other = keys_of("dnn-main"), keys_of("dnn-main", SCALES["preactivated"])
    for ours, theirs in zip(other, paper, strict=True):
        backbone = "resmlp-preactivated" if ours.setting in TABULAR else "resnet18"
        assert ours == replace(theirs, backbone=backbone)
    assert estimate_cost(other) == estimate_cost(paper)


def test_no_scale_of_that_name():
    with pytest.raises(
        InputError, match=r"Unknown scale 'huge'\. Scales are paper, preactivated, reduced, smoke"
    ):
        get_scale("huge")


def test_the_protocol_of_the_paper_scale_is_the_default():
    assert get_scale("paper").settings(4000, 8) == TrainConfig()
    assert get_scale("reduced").settings(400, 8) == TrainConfig(epochs=400)
    assert get_scale("smoke").settings(4, 3) == TrainConfig(epochs=4, rounds=3, features=32)


def test_precision_of_new_runs():
    assert get_scale("paper").settings(7, 3).precision == "tf32"
    assert get_scale("paper", "fp16").settings(7, 3).precision == "fp16"
    with pytest.raises(InputError, match=r"^Results in 'bf16' are not compared .* Choose from tf32, fp16,"):
        get_scale("paper", "bf16")


def test_local_epochs_select_runs(tmp_path):
    request = Request(tmp_path, PAPER, settings=("hopper",), epochs=(400, 1000))
    assert {key.epochs for key in request.select(keys_of("dnn-epochs"))} == {400, 1000}


@pytest.mark.parametrize("part", QUEUE, ids=lambda part: part.question)
def test_every_part_of_the_queue_selects_runs_and_writes_its_command(part, tmp_path):
    chosen = part.settings, part.seeds, part.procedures, part.epochs, part.backbones
    request = Request(tmp_path, get_scale(part.scale), *chosen)
    keys = [key for study in part.studies for key in request.select(keys_of(study, request.scale))]
    assert {key.setting for key in keys} == set(part.settings)
    assert not part.backbones or {key.backbone for key in keys} == set(part.backbones)
    words, first = part.command(tmp_path, None), 2 + len(part.studies)
    assert words[:first] == ["reproduce", "networks", *part.studies]
    options = dict(zip(words[first::2], words[first + 1 :: 2], strict=True))
    assert options["--scale"] == part.scale
    assert tuple(filter(None, options.get("--backbone", "").split(","))) == part.backbones
    assert parse_epochs(options.get("--epochs", "")) == part.epochs
    assert not part.seeds or parse_seeds(options["--seeds"]) == part.seeds
    assert tuple(options["--setting"].split(",")) == part.settings


def test_narrowing_and_what_is_finished(tmp_path):
    narrowed = {"settings": ("dsprites",), "seeds": (0, 3), "procedures": ("corrected", "proximal=0.001")}
    request = empty(tmp_path, **narrowed)
    (plan,) = plan_experiments([STUDIES["dnn-main"]], request, Results())
    assert {(key.procedure.name, key.seed) for key in plan.missing} == {
        (name, seed) for name in ("corrected", "proximal") for seed in (0, 3)
    }
    done = Results([result_of(plan.missing[0], "paper"), result_of(plan.missing[1], "smoke")])
    (again,) = plan_experiments([STUDIES["dnn-main"]], request, done)
    assert set(plan.missing) - set(again.missing) == {plan.missing[0]}


def test_where_all_is_finished_nothing_is_left_to_train(tmp_path):
    request = empty(tmp_path, settings=("dsprites",))
    (plan,) = plan_experiments([STUDIES["dnn-main"]], request, Results())
    done = Results(result_of(key, "paper") for key in plan.missing)
    lines = cost_lines(plan_experiments([STUDIES["dnn-main"]], request, done))
    assert lines[1] == "dnn-main: 20 of 200 runs asked for, 20 of them finished; nothing left to train."


def test_hours_of_a_gpu_are_not_spent_on_a_cpu_unasked(tmp_path, monkeypatch):
    class Asked(Exception):
        pass

    def trained(*arguments):
        raise Asked

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("fedgram.paper.launch.jobs.run_job", trained)
    study, narrowed = STUDIES["dnn-main"], {"settings": ("dsprites",), "seeds": (0,)}
    words = r"No GPU found for 4 runs .* about 3\.3 h of one H200 in TF32\. Pass --scale smoke.*--device cpu"
    with pytest.raises(InputError, match=words) as refused:
        run([study], empty(tmp_path, **narrowed))
    assert refused.value.field == "device"
    minutes = Request(tmp_path, SCALES["reduced"], **narrowed, procedures=("ordinary",), data_dir=tmp_path)
    with pytest.raises(InputError, match=r"No GPU found for 1 run to train, .* min of one H200"):
        run([study], minutes)
    for allowed in (
        empty(tmp_path, **narrowed, device="cpu"),
        Request(tmp_path, SCALES["smoke"], **narrowed),
    ):
        with pytest.raises(Asked):
            run([study], allowed)


def test_a_job_holds_what_shares_a_stack_and_nothing_else():
    keys = [key for key in keys_of("dnn-alignment") if key.setting == "hopper"]
    jobs = make_jobs(keys, EVERYTHING, PAPER)
    names = [({each.name for each in job.procedures}, job.seeds, job.rounds) for job in jobs]
    five = (0, 1, 2, 3, 4)
    assert names == [
        ({"ordinary", "proximal", "aligned"}, five, 8),
        ({"corrected", "proximal+corrected", "aligned+corrected"}, (0, 1, 2), 8),
        ({"independent", "aligned+independent"}, five, 1),
    ]
    trained = sum(len(job.procedures) * len(job.seeds) for job in jobs)
    assert trained == len(keys) == COUNTS["dnn-alignment"] // len(ALIGNED)


def test_settings_that_share_a_dataset_share_its_runs():
    scale = SCALES["smoke"]
    sources = {(name, larger): scale.source(name) for name, larger in EVERYTHING}
    jobs = make_jobs(STUDIES["dnn-main"].keys(scale, sources), sources, scale)
    assert [(job.settings, job.source.dataset) for job in jobs] == [
        (TABULAR, "swimmer-mini"), (IMAGES, "sprites"),
    ]  # fmt: skip


def test_the_list_has_every_study(tmp_path):
    rows = list_rows(empty(tmp_path))
    assert [row[0] for row in rows] == list(STUDIES)
    assert "1 of 10 settings available" in rows[0][3]
    assert rows[0][4] == "0 of 200 runs"
    by_name = {row[0]: row[3] for row in rows}
    assert by_name["dnn-alignment"] == "no data found; 0 of 6 settings available"
    nothing = plan_experiments(
        [STUDIES["dnn-alignment"], STUDIES["dnn-full-model"]], empty(tmp_path), Results()
    )
    assert "nothing left" not in "\n".join([*by_name.values(), *cost_lines(nothing)])
