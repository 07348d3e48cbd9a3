"""What REPRODUCTION.md compares: claims that agree, and claims that disagree with their causes."""

from __future__ import annotations

from typing import NamedTuple

AGREEMENTS = {
    "proximal, endpoint error to the barycenter": ("main-proximal-endpoint",),
    "corrected proximal, endpoint error to the centralized Gram": ("main-proximal-corrected-endpoint",),
    "corrected proximal after rounds 1, 2, 3": (
        "main-proximal-corrected-1", "alignment-proximal-corrected-2", "alignment-proximal-corrected-3",
    ),
    "aligned, endpoint error to the barycenter": ("alignment-aligned-endpoint",),
    "corrected aligned, endpoint error to the centralized Gram; after one round": (
        "alignment-aligned-corrected-8", "alignment-aligned-corrected-1",
    ),
    "endpoint error is smallest at the proximal weight 1e-3": ("rho-endpoint-valley",),
    "ordinary, direction error at E = 50, 400, 1000": ("epochs-50", "epochs-400", "epochs-1000"),
    "full model, E = 400, direction error to barycenter, centralized": (
        "full-400-to-barycenter", "full-400-to-centralized",
    ),
    "objective removed by alignment: Beijing, HalfCheetah (common starts); HalfCheetah (independent)": (
        "mismatched-common-beijing", "mismatched-common-halfcheetah", "mismatched-independent-halfcheetah",
    ),
    "centered: direction error; observed over predicted gap": ("means-direction", "means-ratio"),
}  # fmt: skip


NETWORKS = {
    "ordinary, end point": "main-ordinary-endpoint",
    "corrected, end point": "main-ordinary-corrected-endpoint",
    "aligned, end point": "alignment-aligned-endpoint",
    "corrected proximal, direction error after round 1": "main-proximal-corrected-direction-1",
    "corrected proximal, error after round 2": "alignment-proximal-corrected-2",
    "ordinary, objective above its minimum": "rho-0-objective",
}


class Disagreement(NamedTuple):
    """Claims that disagree for one cause; `shown` of them represent the others in the table."""

    claims: tuple[str, ...]
    cause: str
    shown: int = 3


DISAGREEMENTS = {
    "ordinary training: endpoint error (all ten settings; six settings), direction error": Disagreement(
        ("main-ordinary-endpoint", "alignment-ordinary-endpoint", "epochs-4000", "rho-0-endpoint"),
        "ours are tabular only. The median over six settings stays out of reach: besides all ten image "
        "runs, five tabular ones must end at or below it, and two of ours do. "
        "[Another network](docs/drift.md#the-network) ends as close as the paper's",
    ),
    "corrected ordinary training: endpoint error": Disagreement(
        ("main-ordinary-corrected-endpoint", "alignment-ordinary-corrected-8"),
        "the same drift: Beijing and Walker agree, Hopper and HalfCheetah do not. The pre-activated network "
        "agrees (0.0041 on three datasets)",
    ),
    "final objective above its minimum, proximal weights 0 and 1e-5": Disagreement(
        ("rho-0-objective", "rho-1e-05-objective", "rho-objective-least"),
        "seed 0 alone: at weight 0, three and five seeds have medians of 1.1e-5 and 1.2e-5, near the "
        "paper's; at 1e-5 only seed 0 was run",
        shown=2,
    ),
    "full model: direction error to barycenter; corrected, to the centralized Gram": Disagreement(
        ("full-4000-to-barycenter", "full-corrected-to-centralized"),
        "one run of 15 (Beijing), which jumps: after rounds 3 to 5 and 7 it is at 0.010 to 0.019. The "
        "corrected run ends closer than the paper's median",
    ),
    "epochs until the direction error is below 0.1: Hopper, Walker, Beijing": Disagreement(
        ("epochs-first-hopper", "epochs-first-walker", "epochs-first-beijing"),
        "not known. Hopper gets there one step of the grid early, the others one late; Beijing has 0.106 "
        "at 400. The pre-activated network agrees on Beijing alone of these",
    ),
    "share of runs whose direction error centering changes by more than 0.02": Disagreement(
        ("means-moved",),
        "chance can explain it: 3 of 9 runs against 4 of 30 (Fisher's exact test, p = 0.3)",
    ),
    "objective removed by alignment: Swimmer; Hopper, common; Beijing, independent starts": Disagreement(
        (
            *(f"mismatched-{name}" for name in ("common-swimmer", "common-hopper", "independent-beijing")),
            *(f"mismatched-{name}" for name in ("common-range", "independent-swimmer", "independent-range")),
            "mismatched-similar",
        ),
        "in the paper returned heads lose their [alignment with the broadcast head]"
        "(docs/drift.md#in-the-paper-heads-forget-the-broadcast) in the first round. Ours keep it on "
        "Swimmer, and on Hopper in half of the runs. From common starts, the pre-activated network is near "
        "the paper on all four tables",
    ),
}
