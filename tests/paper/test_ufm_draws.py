"""What the experiments on the exact model draw: sizes, counts, ranges and penalties that the paper prints."""

from functools import wraps
from inspect import signature
from itertools import product

import numpy as np
import pytest

from fedgram.paper.ufm import barycenter, correction, finite, gap, instance, selection
from fedgram.ufm.instances import BARYCENTER_SIZES, GAP_SIZES, SELECTION_SIZES, UNIT, WEAK
from tests.ufm.test_instance_distributions import assert_dirichlet, assert_uniform, eigenvalues

BARYCENTER = list(product((2, 4, 8), (3, 8)))  # C and M in D.3 and D.5
SELECTION = [(targets, width) for targets in (2, 4, 8) for width in (targets, 2 * targets)]  # C and P in D.2


@pytest.fixture
def record(monkeypatch):
    """Record the calls of a module's function: arguments by name, and results."""

    def start(module, name):
        function, calls = getattr(module, name), []

        @wraps(function)
        def recorded(*arguments, **named):
            bound = signature(function).bind(*arguments, **named)
            bound.apply_defaults()
            result = function(*arguments, **named)
            calls.append((bound.arguments, result))
            return result

        monkeypatch.setattr(module, name, recorded)
        return calls

    return start


def arguments_of(calls, *names):
    return [tuple(arguments[name] for name in names) for arguments, _ in calls]


def keywords_of(experiment):
    """Settings of all parts at full scale, by part."""
    return {name: part.keywords for name, part in experiment.parts("full").items()}


def test_sweeps_of_the_gap_draw_eigenvalues_up_to_three(record):
    """Appendix D.4: [0.25, 3] as in panel f, and [κ λ_H λ_W, 3] with κ from 50 to 1.2."""
    moments, solved = record(gap, "gap_moments"), record(gap, "predict")
    settings = [setting for swept in gap.SWEEPS.values() for setting in swept]
    gap.composition(seed=0, settings=settings, instances=256)
    assert arguments_of(moments, "targets", "clients") == [setting[:2] for setting in settings]
    assert arguments_of(solved, "penalty") == [(WEAK,)] * len(settings)
    for (_, drawn), (_, _, margin) in zip(moments, settings, strict=True):
        assert_uniform(eigenvalues(drawn.covariance), 0.01 * margin, 3)
        assert_dirichlet(drawn.client_weights, 2)
    assert {setting[1:] for setting in gap.SWEEPS["targets"]} == {(4, 25.0)}
    assert {(targets, margin) for targets, _, margin in gap.SWEEPS["clients"]} == {(3, 25.0)}
    assert {setting[:2] for setting in gap.SWEEPS["margin"]} == {(3, 4)}
    margins = [margin for _, _, margin in gap.SWEEPS["margin"]]
    assert (margins[0], margins[-1]) == (50, 1.2)
    assert margins == sorted(margins, reverse=True)


def test_counts_and_strengths_of_the_gap(record):
    """Appendix D.4: 512 instances of twelve sizes, 256 per setting, eight seeds from 55 on."""
    assert sorted(GAP_SIZES) == sorted(product((2, 3, 5, 8), (2, 4, 8)))
    full = keywords_of(gap.EXPERIMENT)
    assert full["suite"]["instances"] == full["equalized"]["instances"] == 512
    for name, settings in gap.SWEEPS.items():
        assert full[name]["instances"] == 256
        assert full[name]["settings"] == settings
    assert (full["controlled"]["first_seed"], full["controlled"]["seeds"]) == (55, 8)
    assert full["controlled"]["means"] == [0, 0.25, 0.5, 1, 1.5, 2, 3]
    assert full["controlled"]["covariances"] == [0, 0.2, 0.4, 0.6, 0.8, 1]
    drawn, solved = record(gap, "gap_instances"), record(gap, "predict")
    gap.suite(seed=0, instances=12)
    gap.equalized(seed=0, instances=12)
    gap.controlled(first_seed=55, seeds=1, means=[1.0], covariances=[1.0])
    assert arguments_of(drawn, "instances") == [(12,)] * 2
    assert {penalty for (penalty,) in arguments_of(solved, "penalty")} == {WEAK}


def test_selection_draws_all_sizes(record):
    """Appendix D.2: 128 clients for each C and P; redraws have the same sizes."""
    assert list(SELECTION_SIZES) == SELECTION
    drawn = record(selection, "selection_instances")
    selection.redraws(seed=0, suites=2, instances=3, weight=1e-6)
    assert arguments_of(drawn, "targets", "width", "instances") == [(*size, 3) for size in SELECTION * 2]
    drawn.clear()
    selection.selection(seed=[0], size=[2, 4], instances=1, weights=[1.0], starts=1)
    assert arguments_of(drawn, "targets", "width", "instances") == [(2, 4, 1)]
    full = keywords_of(selection.EXPERIMENT)
    assert full.pop("redraws")["instances"] == 128
    assert full.pop("minimizers")["weights"] == [1e2, 1e1, 1, 1e-1, 1e-2, 1e-3, 1e-4]
    for size in SELECTION:
        assert sum(each["instances"] for each in full.values() if tuple(each["size"]) == size) == 128
    assert {each["starts"] for each in full.values()} == {6}


def test_convergence_draws_all_sizes(record):
    """Appendix D.3: 16 federations of each size, 18 rounds, ρ from 1e-1 to 1e-6."""
    assert list(BARYCENTER_SIZES) == BARYCENTER
    drawn = record(barycenter, "barycenter_instances")
    for each in (barycenter.exact_rounds, barycenter.adam_rounds, barycenter.proximal_rounds):
        more = {"adam_rounds": {"steps": 1, "rate": 0.02}, "proximal_rounds": {"weight": 0.1}}
        each(seed=[0], size=[2, 3], instances=1, rounds=1, **more.get(each.__name__, {}))
    assert arguments_of(drawn, "targets", "clients", "instances") == [(2, 3, 1)] * 3
    full = keywords_of(barycenter.EXPERIMENT).values()
    assert {each["weight"] for each in full if "weight" in each} == {10.0**-k for k in range(1, 7)}


def test_correction_draws_all_sizes(record):
    """Appendix D.5: 32 instances of each size with λ_H = λ_W = 1, and 512 instances of D.4."""
    drawn, corrected = record(correction, "barycenter_instances"), record(correction, "correct")
    solved, mapped = record(correction, "predict"), record(correction, "phi")
    correction.exact_rounds(seed=0, instances=1, deficits=[0.0], rounds=1)
    correction.corrected_returns(seed=0, instances=1)
    correction.commutators(seed=0, instances=1)
    correction.relative_gaps(seed=0, instances=1)
    expected = [(*size, 1) for size in BARYCENTER * 4]
    assert arguments_of(drawn, "targets", "clients", "instances") == expected
    for calls, count in ((corrected, 12), (solved, 6), (mapped, 6)):
        assert arguments_of(calls, "penalty") == [(UNIT,)] * count
        calls.clear()
    suite = record(correction, "gap_instances")
    correction.identities(seed=0, instances=12)
    assert arguments_of(suite, "instances") == [(12,)]
    correction.proximal_round(first_seed=55, seeds=1, strengths=[1.0], proximal_weights=[1e-1])
    for calls in (corrected, solved, mapped):
        assert {penalty for (penalty,) in arguments_of(calls, "penalty")} == {WEAK}
    full = keywords_of(correction.EXPERIMENT)
    assert {full[name]["instances"] for name in ("rounds", "returns", "commutators")} == {32}
    assert full["identities"]["instances"] == 512
    assert full["fixed"]["strengths"] == [1.0, 0.5]
    assert full["fixed"]["proximal_weights"][-1] == 1e-5


def test_settings_of_the_fixed_instance():
    """Appendix D.1: ρ of both panels, snapshots of Adam, rounds, and strengths of the correction."""
    full = keywords_of(instance.EXPERIMENT)
    np.testing.assert_allclose(full["path"]["weights"], np.logspace(-1, -6, 11))
    assert full["rounds"] == {"weights": [1e-1, 1e-2, 1e-3, 1e-4], "rounds": 18}
    assert full["adam"] == {"steps": [0, 20, 80, 240], "rate": 0.02}
    assert full["correction"]["strengths"] == [0, 0.9, 0.99, 1]


def test_settings_of_finite_steps():
    """Appendix G.4: three instances, five rates, ten step counts, and 52 instances for 780 records."""
    full = keywords_of(finite.EXPERIMENT)
    assert full["sweep"]["instances"] == 3
    assert full["sweep"]["rates"] == [0.02, 0.05, 0.1, 0.2, 0.5]
    steps = full["sweep"]["steps"]
    assert (len(steps), steps[0], steps[-1]) == (10, 1, 2000)
    assert (full["commuting"]["rates"], full["commuting"]["steps"]) == ([0.1, 0.5], 2000)
    displaced = full["displacement"]
    assert displaced["instances"] * len(displaced["rates"]) * len(displaced["steps"]) == 24
    assert full["stability"]["horizons"] == [1e-4, 3e-4, 1e-3, 3e-3, 1e-2]
    assert full["stability"]["steps"] == [2, 4, 8]
    assert (finite.PENALTY, sum(count for _, count in finite.FAMILIES.values())) == (WEAK, 52)
