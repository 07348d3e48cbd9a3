"""Training into folders: stacks, devices, progress, and runs that go wrong."""

import os
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedgram import InputError, Penalty
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.federation.federation import Federation
from fedgram.nets.batches import Batches
from fedgram.nets.fit import Fit
from fedgram.nets.model import Model, operations_per_row, translate_errors
from fedgram.runs import Runs
from fedgram.runs.measure import measure
from fedgram.runs.procedure import BIAS_RULES, Procedure
from fedgram.runs.record import Run
from fedgram.runs.train_config import TrainConfig
from fedgram.training import devices, memory, predict_rows, train
from tests.helpers.plain_loop import pictures, tabular
from tests.helpers.small_runs import (
    PROCEDURES,
    SETTINGS,
    assert_same_contents,
    contents,
    net,
    small_problem,
    trained,
)


def without_progress(said):
    """Drop the sentences about the first round."""
    return [sentence for sentence in said if "progress of local training in round 1" not in sentence]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of all runs, trained in one stack without a stop. Tests must not change it."""
    folder = tmp_path_factory.mktemp("whole")
    trained(folder)
    return folder


def test_what_is_stored_is_what_the_federation_recorded(tmp_path):
    runs = trained(tmp_path)
    given = [Run(Procedure.parse(name), seed) for name in PROCEDURES for seed in (0, 1)]
    federation = Federation(small_problem(), net, given, SETTINGS, torch.device("cpu"))
    heads = federation.head.numpy().copy()
    recorded = list(federation.rounds())
    assert [run.setup.run for run in runs] == given
    for r, stored in enumerate(runs):
        np.testing.assert_array_equal(stored.initial[0], heads[r])
        for round, found in zip(recorded, stored.rounds(), strict=True):
            for name, value in vars(round[given[r]]).items():
                np.testing.assert_array_equal(getattr(found, name), value, err_msg=name)
        weight = federation.site_models(federation.runs[r]).tensors["feature.weight"]
        np.testing.assert_array_equal(stored.model()["feature.weight"], weight)


@pytest.mark.parametrize("name", ["ordinary", "aligned+private", "solved+corrected+offset", "full-model"])
def test_the_stored_models_predict_as_recorded(tmp_path, name):
    (run,) = trained(tmp_path, [name], [0])
    arrays = {key: torch.tensor(value) for key, value in run.model().items()}
    rule = BIAS_RULES.index(run.setup.procedure.bias)
    for m, split in enumerate(small_problem().train.values()):
        one = Model(net(), *reversed(arrays["feature.weight"].shape[1:]), split.targets.shape[1]).double()
        one.load_state_dict({key: value[m] for key, value in arrays.items()})
        with torch.no_grad():
            predict_rows = one(torch.tensor(split.inputs).double())[1].numpy()
        error = np.mean((predict_rows - split.targets) ** 2)
        assert error == pytest.approx(run.rounds()[-1].train_mse[m, rule], rel=1e-9)


def test_finished_runs_are_not_trained_again(tmp_path, monkeypatch):
    trained(tmp_path, seeds=[0])
    before, said = contents(tmp_path), []
    runs = trained(tmp_path, on_warning=said.append)
    assert without_progress(said) == ["Finished runs: 2 of 4."]
    assert [run.account.stack for run in runs] == [2, 2, 2, 2]
    after = contents(tmp_path)
    for place, array in before.items():
        np.testing.assert_array_equal(after[place], array)
    monkeypatch.setattr("fedgram.training.trainer.StackTraining", None)  # would fail if it were used
    assert len(trained(tmp_path)) == 4


def test_numbers_of_numpy_are_numbers(tmp_path):
    settings = replace(SETTINGS, rounds=np.int64(2), learning_rate=np.float32(1e-3))
    trained(tmp_path, ["ordinary"], np.arange(2), settings=settings)
    said, plain = [], replace(SETTINGS, rounds=2, learning_rate=float(np.float32(1e-3)))
    runs = trained(tmp_path, ["ordinary"], range(2), settings=plain, on_warning=said.append)
    assert said == ["Finished runs: 2 of 2."]
    assert [run.setup.seed for run in runs] == [0, 1]


def test_a_checkpoint_that_outlived_its_stack_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("fedgram.runs.store.Checkpoint.remove", lambda self: None)
    trained(tmp_path)
    monkeypatch.undo()
    assert list(tmp_path.rglob("stack-*"))
    trained(tmp_path)
    assert not list(tmp_path.rglob("stack-*"))


def frozen():
    made = net()
    made[0].bias.requires_grad_(False)
    return made


def seeded_module():
    """A module with other weights than `net` draws. Unseeded weights give the same fingerprint at times."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return net()


@pytest.mark.parametrize(
    "other",
    [lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU()), frozen, seeded_module()],
    ids=["activation", "frozen", "weights"],
)
def test_another_network_under_the_same_name_is_refused(tmp_path, other):
    def again(backbone):
        return train(small_problem(), backbone, "ordinary", [0], SETTINGS, folder=tmp_path, backbone_name="x")

    again(net)
    with pytest.raises(InputError, match=r"network differs .* starts from its current weights: seed them"):
        again(other)
    assert len(again(net)) == 1


def test_a_backbone_with_randomness_of_its_own_is_named(tmp_path):
    def dropping():
        return nn.Sequential(net(), nn.Dropout(0.1))

    said = []
    train(
        small_problem(), dropping, ["ordinary"], [0], SETTINGS, folder=tmp_path / "a", on_warning=said.append
    )
    assert without_progress(said) == [
        "The backbone draws random numbers while training, as dropout does. Repeated and resumed runs "
        "will differ."
    ]
    trained(tmp_path / "b", ["ordinary"], [0], on_warning=said.append)

    def kept():
        return nn.Sequential(net(), nn.Dropout(0.0))

    train(small_problem(), kept, ["ordinary"], [0], SETTINGS, folder=tmp_path / "c", on_warning=said.append)
    assert len(without_progress(said)) == 1


def test_centralized_runs_and_procedures_given_twice(tmp_path):
    runs = trained(tmp_path, ["centralized", "ordinary", Procedure(), "ordinary"], [0])
    assert [run.setup.run.name for run in runs] == ["centralized/seed-0", "ordinary/seed-0"]
    assert runs[0].rounds()[0].returned_heads.shape == (1, 2, 6)
    assert all(run.account.stack == 1 for run in runs)


def test_stacks_are_split_where_memory_is_short(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(memory, "max_runs_at_once", lambda problem, backbone, runs, settings, device: 3)
    said = []
    runs = trained(tmp_path / "split", seeds=[0, 1], on_warning=said.append)
    assert without_progress(said) == [
        "4 runs do not fit into the memory of cpu at once. Training 2 stacks of up to 2."
    ]
    assert [run.account.stack for run in runs] == [2, 2, 2, 2]
    monkeypatch.undo()
    split = contents(tmp_path / "split")
    for place, array in contents(whole).items():
        np.testing.assert_allclose(split[place], array, rtol=1e-9, atol=1e-12)


def test_too_little_memory_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1000)
    with pytest.raises(InputError, match="One run needs about"):
        trained(tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_memory_that_runs_out_on_the_way(tmp_path, monkeypatch):
    def exhausted(self, number, advanced):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Fit, "round", exhausted)
    with pytest.raises(InputError, match="ran out of memory with 4 runs at once; finished rounds are stored"):
        trained(tmp_path)


def test_memory_is_counted_by_the_formula():
    rows, clients, number, width, features, targets, layers = 60, 3, 8, 5, 6, 2, 4 + 5 + 5 + 6 + 2
    held = (rows + 8) * number * (4 + 2 * targets)
    returned = number * (rows * width + 24 * (width + features) + 2 * clients * features * (width + targets))
    activations = 2 * number * SETTINGS.batch * layers * clients
    needed = memory.footprint(small_problem(), net, False, SETTINGS)
    run = 4 * number * clients * 75 + returned + 96 * clients * (24 + SETTINGS.batch)
    assert [needed.total(count) for count in (1, 3)] == [
        held + run + activations,
        held + 3 * (run + activations),
    ]
    assert replace(needed, shared_activations=True).total(3) == held + 3 * run + activations


@pytest.mark.parametrize("problem", [tabular((90, 5, 4)), pictures((40, 6, 5))], ids=["numbers", "images"])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("word", ["ordinary", "centralized"])
def test_rows_are_held_once_however_unequal_clients_are(problem, precision, word):
    settings, cpu = replace(SETTINGS, precision=precision), torch.device("cpu")

    def flat():
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(5))

    federation = Federation(problem, flat, [Run(Procedure.parse(word), 0)], settings, cpu)
    sites, batches = federation.clients.data, federation.clients.fit.batches
    rows = [tensor for pair in (*sites.train, *sites.test) for tensor in pair]
    held = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
            for each in (batches.inputs, batches.targets, *rows)}  # fmt: skip
    needed = memory.footprint(problem, flat, word == "centralized", settings)
    assert sum(held.values()) <= needed.fixed < 1.3 * sum(held.values())  # of test targets there is no second
    assert batches.order.nbytes + batches.rows.nbytes + batches.absent.nbytes <= needed.order


def test_as_many_runs_are_trained_at_once_as_memory_holds(monkeypatch):
    needed = memory.footprint(small_problem(), net, False, SETTINGS)
    runs = [Run(Procedure(), seed) for seed in range(4)]
    for free, fits in ((needed.total(2), 2), (needed.total(3) - 2, 2), (needed.total(9), 4)):
        monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: 1 + int(free / 0.9))
        assert memory.max_runs_at_once(small_problem(), net, runs, SETTINGS, torch.device("cpu")) == fits


def test_blended_runs_and_best_models_need_memory(monkeypatch):
    problem, cpu = small_problem(), torch.device("cpu")
    validated = replace(problem, validation=problem.train)
    needed, plain = (memory.footprint(each, net, False, SETTINGS) for each in (validated, problem))
    assert needed.state == 1.25 * plain.state
    assert needed.fixed > plain.fixed
    runs = [Run(Procedure.parse("full-model+blended"), seed) for seed in range(4)]
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1 + int(needed.total(5) / 0.9))
    assert memory.max_runs_at_once(validated, net, runs, SETTINGS, cpu) == 2


def test_free_memory_is_some_of_the_memory():
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert whole / 500 < memory.free_bytes(torch.device("cpu")) <= whole


def test_memory_that_runs_out_is_not_put_down_to_the_backbone():
    with pytest.raises(torch.OutOfMemoryError), translate_errors(16):
        raise torch.OutOfMemoryError


class Interrupted(BaseException):
    """Ctrl-C."""


def stopping(round):
    def progress(status):
        if status.round == round:
            raise Interrupted

    return progress


def test_a_checkpoint_with_runs_that_are_not_wanted_any_more(tmp_path):
    with pytest.raises(Interrupted):
        trained(tmp_path / "a", on_epoch=stopping(3))
    (checkpoint,) = (tmp_path / "a").rglob("stack-*")
    said = []
    trained(tmp_path / "a", ["ordinary"], on_warning=said.append)
    assert without_progress(said) == [
        f"'{checkpoint}' contains runs that were not requested. Its requested runs start over."
    ]
    assert not checkpoint.exists()
    trained(tmp_path / "b", ["ordinary"])
    ours, theirs = contents(tmp_path / "a"), contents(tmp_path / "b")
    for place, array in theirs.items():
        np.testing.assert_array_equal(ours[place], array)


def test_the_same_rows_go_on_wherever_they_came_from(tmp_path):
    with pytest.raises(Interrupted):
        trained(tmp_path, ["ordinary"], [0], on_epoch=stopping(2))
    moved, said = replace(small_problem(), provenance={"file": "elsewhere"}), []
    trained(tmp_path, ["ordinary"], [0], problem=moved, on_warning=said.append)
    assert said == ["Resuming 1 run after round 1."]


def test_more_runs_may_be_added_to_a_stack_that_was_stopped(tmp_path):
    with pytest.raises(Interrupted):
        trained(tmp_path / "a", seeds=[0], on_epoch=stopping(2))
    said = []
    runs = trained(tmp_path / "a", seeds=[0, 1], on_warning=said.append)
    assert without_progress(said) == ["Resuming 2 runs after round 1."]
    assert all(run.complete for run in runs)
    trained(tmp_path / "b", seeds=[0])
    trained(tmp_path / "b", seeds=[0, 1])
    assert_same_contents(tmp_path / "b", tmp_path / "a")


def test_runs_that_go_on_are_held_and_finished_ones_are_not(tmp_path):
    trained(tmp_path, ["ordinary"], [0])
    with pytest.raises(Interrupted):
        trained(tmp_path, ["ordinary"], [1], on_epoch=stopping(2))

    def again(now):
        assert trained(tmp_path, ["ordinary"], [0])
        with pytest.raises(InputError, match="Another process writes to"):
            trained(tmp_path, ["ordinary"], [1])

    trained(tmp_path, ["ordinary"], [0, 1], on_epoch=again)
    assert not list(tmp_path.rglob("stack-*"))


def test_a_run_folder_that_was_deleted_under_a_checkpoint(tmp_path, whole):
    import shutil

    with pytest.raises(Interrupted):
        trained(tmp_path / "a", on_epoch=stopping(2))
    shutil.rmtree(tmp_path / "a" / "small" / "net" / "ordinary" / "seed-0")
    trained(tmp_path / "a")
    assert_same_contents(whole, tmp_path / "a")


def test_progress_says_how_far_it_is(tmp_path):
    told = []
    trained(tmp_path, ["ordinary", "centralized"], [0], on_epoch=told.append)
    assert [(now.stack, now.round, now.epoch) for now in told] == [
        (stack, round, epoch) for stack in (1, 2) for round in (1, 2, 3) for epoch in (1, 2)
    ]
    assert {(now.stacks, now.rounds, now.epochs) for now in told} == {(2, 3, 2)}
    assert told[0].errors == {}
    run = Run(Procedure(), 0)
    measured = measure(Runs(tmp_path).require()[1])
    assert measured.setup.run == run
    assert told[2].errors == {run: measured.target_error[1]}
    assert told[5].seconds_left > 0
    assert told[-1].seconds_left == 0
    assert told[-1].peak_memory > 1e7


def test_progress_compares_each_run_with_its_own_target(tmp_path):
    told = []
    runs = trained(tmp_path, seeds=[0], on_epoch=told.append)
    assert told[-1].errors == {run.setup.run: measure(run).target_error[2] for run in runs}


@pytest.fixture
def epochs_of_a_second(monkeypatch):
    """A clock by which every epoch takes one second, and nothing else takes any."""
    clock, real = [0.0], Batches.shuffle

    def shuffle(self, round, epoch):
        clock[0] += 1.0
        real(self, round, epoch)

    monkeypatch.setattr(Batches, "shuffle", shuffle)
    monkeypatch.setattr("fedgram.training.stack_training.time.perf_counter", lambda: clock[0])


def test_the_time_that_is_left_counts_later_stacks(tmp_path, epochs_of_a_second):
    told, wanted = [], {"procedures": ["ordinary", "centralized"], "seeds": [0, 1]}
    runs = trained(tmp_path, **wanted, on_epoch=told.append)
    assert [now.seconds_left for now in told] == [11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert {run.account.seconds for run in runs} == {(2, 2, 2)}


def test_the_time_that_is_left_is_told_from_what_this_process_took(tmp_path, epochs_of_a_second):
    with pytest.raises(Interrupted):
        trained(tmp_path, on_epoch=stopping(2))
    told = []
    trained(tmp_path, on_epoch=told.append)
    assert [now.seconds_left for now in told] == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("procedure", "advice"),
    [
        ("local", "These runs have no model for their rows."),
        ("full-model+moment-head", "A shared model can predict their rows."),
        ("ordinary", ""),
    ],
)
def test_clients_too_small_for_a_covariance_are_left_out_if_nothing_is_predicted(tmp_path, procedure, advice):
    whole = tabular((20, 20, 3))
    flat, single = (whole.train["site 2"].take(slice(0, rows)) for rows in (3, 1))
    flat = Split(flat.inputs, np.ones_like(flat.targets))
    rows = {**whole.train, "flat": flat, "single": single}
    data, said = Problem("rows", "GENERATED", rows), []
    if "moment-head" in procedure:
        data = data.hold_out_validation(0.2)
    config = TrainConfig(rounds=1, epochs=1, features=5, precision="fp32")
    if not advice:
        with pytest.raises(InputError, match="constant at client 'flat'"):
            train(data, "resmlp-small", [procedure], [0], config, folder=tmp_path, device="cpu")
        return
    (run,) = train(
        data, "resmlp-small", [procedure], [0], config, folder=tmp_path, device="cpu", on_warning=said.append
    )
    assert run.setup.data.clients == ("site 0", "site 1", "site 2")
    assert f"Left out 2 clients: 'flat' (a constant target), 'single' (1 training row). {advice}" in said


def poisoned(monkeypatch, model, at_round):
    """Make one model of the stack infinite as it begins a round."""
    real = Fit.round

    def round(self, number, advanced):
        if number == at_round:
            self.stack.parameters["backbone.0.weight"][model] = float("inf")
        return real(self, number, advanced)

    monkeypatch.setattr(Fit, "round", round)


def test_a_run_that_diverges_is_named_and_the_others_go_on(tmp_path, monkeypatch):
    trained(tmp_path / "sound")
    with monkeypatch.context() as patch:
        poisoned(patch, model=4 + 1, at_round=2)  # client 2 of the second run
        said, told = [], []
        runs = trained(tmp_path / "runs", on_warning=said.append, on_epoch=told.append)
    reason = "client 'site 1' diverged in round 2"
    assert [len(now.errors) for now in told] == [0, 0, 4, 4, 3, 3]
    assert without_progress(said) == [f"ordinary/seed-1 stopped: {reason}."]
    assert [run.account.stopped for run in runs] == [None, reason, None, None]
    assert [run.account.rounds for run in runs] == [3, 1, 3, 3]
    assert [run.complete for run in runs] == [True, False, True, True]
    assert len(measure(runs[1]).grams) == 2
    found = contents(tmp_path / "runs")
    for place, array in contents(tmp_path / "sound").items():
        if "ordinary/seed-1" not in place[0]:
            np.testing.assert_array_equal(found[place], array)
    said.clear()
    trained(tmp_path / "runs", on_warning=said.append)
    assert said == ["Finished runs: 4 of 4."]


def test_a_diverged_run_stays_given_up_when_its_stack_goes_on(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        poisoned(patch, model=1, at_round=1)
        with pytest.raises(Interrupted):
            trained(tmp_path / "a", on_epoch=stopping(3))
    said = []
    runs = trained(tmp_path / "a", on_warning=said.append)
    assert said == ["Finished runs: 1 of 4.", "Resuming 4 runs after round 2."]
    assert [run.account.rounds for run in runs] == [3, 0, 3, 3]
    assert runs[1].account.stopped == "client 'site 0' diverged in round 1"
    with pytest.raises(InputError, match="was stopped because client 'site 0' diverged in round 1"):
        measure(runs[1])


def test_nothing_is_trained_when_all_runs_have_diverged(tmp_path, monkeypatch):
    poisoned(monkeypatch, model=slice(None), at_round=2)
    told = []
    runs = trained(tmp_path, on_epoch=told.append)
    assert max(now.round for now in told) == 2
    assert all(run.is_finished and not run.complete for run in runs)
    assert not list(tmp_path.rglob("model*"))


def test_a_client_that_is_not_fully_active_is_trained_and_flagged(tmp_path):
    settings = TrainConfig(rounds=1, epochs=1, features=4, penalty=Penalty(2.0, 1.0), precision="fp64")
    said = []
    (run,) = trained(tmp_path, ["ordinary"], [0], settings, on_warning=said.append)
    assert any("is not fully active" in sentence for sentence in said)
    assert run.complete
    assert measure(run).warnings == tuple(without_progress(said))


def test_models_are_kept_only_where_wanted(tmp_path):
    said = []
    (run,) = trained(tmp_path, ["ordinary"], [0], keep_models=False, on_warning=said.append)
    assert not list(run.folder.glob("model*"))
    assert not any("without saved networks" in each for each in said)
    trained(tmp_path, ["ordinary"], [0, 1], on_warning=said.append)
    assert said[-1].startswith("1 run finished earlier without saved networks.")


def test_a_lost_model_is_named(tmp_path):
    (run,) = trained(tmp_path, ["ordinary"], [0])
    path = run.folder / "model.safetensors"
    path.unlink()
    said = []
    (again,) = trained(tmp_path, ["ordinary"], [0], on_warning=said.append)
    assert said[-1] == f"'{path}' is missing. Restore the file, or delete its folder and train again."
    assert not any("without saved networks" in each for each in said)
    with pytest.raises(InputError, match=r"model\.safetensors' is missing\. Restore the file"):
        again.require_model()


def test_images_in_bytes_without_an_axis_of_channels_are_numbers(tmp_path):
    """Trained, measured and predicted as the same rows in single precision, to the bit."""
    rng = np.random.default_rng(0)
    images, targets = rng.integers(0, 2, (2, 20, 28, 28), dtype=np.uint8), rng.standard_normal((2, 20, 2))
    settings, predicted = replace(SETTINGS, precision="fp32", rounds=2), []

    def flat():
        return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 5))

    for kind in (np.uint8, np.float32):
        problem = Problem.from_arrays(list(images.astype(kind)), list(targets))
        inputs = problem.train["client 1"].inputs
        assert inputs.dtype == kind
        runs = train(problem, flat, PROCEDURES, [0], settings, folder=tmp_path / kind.__name__)
        predicted.append(predict_rows(runs[0], {"client 1": inputs}, flat)["client 1"])
    ours, theirs = contents(tmp_path / "uint8"), contents(tmp_path / "float32")
    for place in ours.keys() | theirs.keys():
        np.testing.assert_array_equal(ours[place], theirs[place], err_msg=str(place), strict=True)
    assert np.array_equal(*predicted)


def test_own_module_and_arrays_in_a_few_lines(tmp_path):
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((30, 3)) for _ in range(2)]
    problem = Problem.from_arrays(inputs, [x[:, :2] * (m + 1) for m, x in enumerate(inputs)])
    settings = TrainConfig(rounds=1, epochs=1, features=4)
    (run,) = train(
        problem, nn.Linear(3, 4), ["aligned"], [0], settings, folder=tmp_path, backbone_name="mine"
    )
    assert run.folder == tmp_path / "own-data" / "mine" / "aligned" / "seed-0"
    assert np.isnan(measure(run).test_mse).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"settings": TrainConfig(features=1)}, "features=1 is too small for 2 targets"),
        ({"device": "gpu"}, "Unknown device 'gpu'. Choose auto, cpu, cuda or cuda:N."),
        ({"device": "meta"}, "Unknown device 'meta'"),
        ({"device": "cuda"}, "PyTorch finds no CUDA GPU. Train with device cpu."),
        ({"procedures": ["ordinery"]}, "did you mean 'ordinary'"),
        ({"procedures": ["full-model+solved"]}, "Remove 'aligned', 'solved' and 'offset'"),
        ({"procedures": []}, "Name at least one procedure and one seed."),
        ({"seeds": []}, "Name at least one procedure and one seed."),
        ({"seeds": 3}, "seeds must be a list, not 3. Pass range(3), for example."),
        ({"seeds": [0, -2]}, "A seed must be an integer of at least 0, not -2."),
        ({"seeds": [0, 1.5]}, "A seed must be an integer of at least 0, not 1.5."),
        (
            {"settings": TrainConfig(precision="bf16")},
            "bf16 needs a GPU. Train with precision fp32 on a CPU.",
        ),
        ({"settings": {"rounds": 2}}, "config= expects TrainConfig, got dict. Build it with TrainConfig("),
        ({"settings": TrainConfig(penalty=Penalty(50.0, 50.0))}, "No client is active along"),
    ],
)
def test_what_cannot_be_trained_is_refused(tmp_path, options, words):
    if options.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("There is a GPU.")
    with pytest.raises(InputError) as refused:
        trained(tmp_path / "runs", **options)
    assert words in refused.value.message
    assert not (tmp_path / "runs").exists()


def test_a_module_is_no_start_of_their_own_for_clients(tmp_path):
    words, run = "but a module has fixed weights. Pass a function", Run(Procedure(independent=True), 0)
    with pytest.raises(InputError, match=f"With 'independent' every client draws .*{words}"):
        train(small_problem(), net(), ["ordinary", "independent"], [0], SETTINGS, folder=tmp_path / "runs")
    with pytest.raises(InputError, match=words):
        Federation(small_problem(), net(), [run], SETTINGS, torch.device("cpu"))
    assert not (tmp_path / "runs").exists()


def test_convolutions_are_counted_with_all_their_pixels():
    side, channels = 6, 5
    layers = nn.Sequential(nn.Conv2d(2, channels, 3, padding=1), nn.Flatten())
    model = Model(layers, channels * side**2, 4, 3)
    by_hand = side**2 * channels * 2 * 9 + channels * side**2 * 4 + 4 * 3
    assert operations_per_row(model, torch.zeros(2, 2, side, side)) == 2 * by_hand


def test_hours_of_a_cpu_must_be_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("fedgram.training.devices.THREAD_RATE", 1.0 / min(torch.get_num_threads(), 8))
    forward = 2 * (4 * 5 + 5 * 6 + 6 * 2)  # of one row
    hours = 4 * 3 * 2 * (24 + 20 + 16) * 3 * forward / 3600  # runs, rounds, epochs, rows, and back
    with pytest.raises(InputError, match=rf"for about {hours:.0f} hours of training on this CPU\. Use fewer"):
        trained(tmp_path / "runs", device="auto")
    assert not (tmp_path / "runs").exists()
    assert trained(tmp_path / "runs", device="cpu")
    assert trained(tmp_path / "runs", device="auto")  # where nothing is left to train


def test_a_stack_is_trained_with_its_gpu_as_the_current_one(tmp_path, monkeypatch):
    assert isinstance(devices.use_device(torch.device("cpu")), nullcontext)
    chosen = devices.use_device(torch.device("cuda", 1))
    assert isinstance(chosen, torch.cuda.device)
    assert chosen.idx == 1
    entered, real = [], Federation.rounds

    @contextmanager
    def current(device):
        entered.append(device)
        yield
        entered.pop()

    def rounds(federation, advanced):
        assert entered == [torch.device("cpu")]
        return real(federation, advanced)

    monkeypatch.setattr(devices, "use_device", current)
    monkeypatch.setattr(Federation, "rounds", rounds)
    assert trained(tmp_path, seeds=[0], device="cpu")


def test_gpus_are_counted_from_zero(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, index in (("auto", None), ("cuda", None), ("cuda:1", 1)):
        assert devices.resolve_device(name) == torch.device("cuda", index)
    with pytest.raises(InputError, match="Unknown device 'cuda:2': PyTorch finds 2 CUDA GPUs"):
        devices.resolve_device("cuda:2")


@pytest.mark.parametrize(
    ("backbone", "words"),
    [
        ("resmlp-smal", "did you mean 'resmlp-small'"),
        ("resnet-small", "takes images, but inputs have shape (4,)"),
        (nn.Unflatten(1, (2, 2)), "it returned (2, 2, 2)"),
        (lambda width: nn.Linear(4, width), "Pass a function without arguments that returns a new module."),
    ],
)
def test_a_backbone_that_does_not_fit_is_refused(tmp_path, backbone, words):
    with pytest.raises(InputError) as refused:
        train(small_problem(), backbone, ["ordinary"], [0], SETTINGS, folder=tmp_path)
    assert words in refused.value.message


class Branching(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return -y if y.sum() > 0 else y


@pytest.mark.parametrize(
    ("backbone", "batch", "words"),
    [
        (Branching(4, 3), 16, "as a stack (torch.func.vmap) in minibatches of 16: RuntimeError: vmap: "),
        (nn.BatchNorm1d(4), 1, "in minibatches of 1: ValueError: Expected more than 1 value per channel"),
        (nn.BatchNorm1d(4), 1, "Choose a batch size that leaves no client a minibatch of one row."),
    ],
)
def test_a_backbone_that_cannot_be_stacked_is_refused(tmp_path, backbone, batch, words):
    with pytest.raises(InputError) as refused:
        train(small_problem(), backbone, ["ordinary"], [0], replace(SETTINGS, batch=batch), folder=tmp_path)
    assert words in refused.value.message


def test_counts_stay_whole_numbers_in_stored_models(tmp_path):
    backbone = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    (run,) = train(small_problem(), backbone, ["ordinary"], [0], SETTINGS, folder=tmp_path)
    counts = run.model()["backbone.1.num_batches_tracked"]
    assert counts.dtype == np.int64
    assert counts.tolist() == [3 * 2 * steps for steps in (2, 2, 1)]


def test_frozen_parameters_stay(tmp_path):
    frozen, free = nn.Linear(4, 6).requires_grad_(False), nn.Linear(6, 3)
    backbone = nn.Sequential(frozen, nn.Tanh(), free)
    (run,) = train(small_problem(), backbone, ["ordinary"], [0], SETTINGS, folder=tmp_path)
    models = run.model()
    for client in range(len(small_problem().clients)):
        np.testing.assert_array_equal(models["backbone.0.weight"][client], frozen.weight.numpy())
        assert np.abs(models["backbone.2.weight"][client] - free.weight.detach().numpy()).max() > 1e-4


def test_small_networks_are_computed_by_one_thread(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before, seen = torch.get_num_threads(), set()
    torch.set_num_threads(2)
    try:
        for size, allowed in (("small", devices.SMALL), ("large", 0)):
            monkeypatch.setattr(devices, "SMALL", allowed)
            trained(tmp_path / size, on_epoch=lambda status: seen.add((size, torch.get_num_threads())))  # noqa: B023
        assert seen == {("small", 1), ("large", 2)}
        assert torch.get_num_threads() == 2
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        with devices.limit_threads(devices.SMALL - 1, torch.device("cpu")):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("what", ["inputs", "targets"])
def test_values_that_are_not_finite_are_named(what):
    arrays = {"inputs": [np.zeros((9, 3)), np.zeros((9, 3))], "targets": [np.zeros((9, 2)), np.zeros((9, 2))]}
    arrays[what][1][4, 1] = np.nan
    with pytest.raises(InputError, match=f"Client 'client 2' has a value in its {what} .* row 5, column 2"):
        Problem.from_arrays(**arrays)


def test_warnings_are_logged_unless_a_function_takes_them(tmp_path, caplog):
    backbone = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    with caplog.at_level("WARNING"):
        train(small_problem(), backbone, ["ordinary"], [0], SETTINGS, folder=tmp_path / "logged")
    assert any("draws random numbers" in record.message for record in caplog.records)
    caplog.clear()
    heard = []
    train(small_problem(), backbone, ["ordinary"], [0], SETTINGS, folder=tmp_path, on_warning=heard.append)
    assert heard
    assert not caplog.records
