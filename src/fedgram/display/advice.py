"""Sentences, tables and a figure of the advice to sites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from rich.console import Console
from scipy.special import bdtrc

from fedgram._util.files import write_bytes
from fedgram._util.text import pluralize
from fedgram.data.problem import Problem
from fedgram.display.console import PlainTable, plain_table, print_table, print_wrapped
from fedgram.display.plotting import GREEN, INK, escape_label, figure_suffix, new_axes, pyplot, render
from fedgram.display.sentences import format_digits
from fedgram.runs.advice import ALONE, AUTO, LABELS, LEAST_GAIN, POOLED, Advice, SiteAdvice, Verdict
from fedgram.runs.paired_bootstrap import FEWEST_CONSECUTIVE_ROWS, FEWEST_ROWS, is_decisive

MAX_SITES = 10  # shown unless all are asked for
LOSS_BY_CHANCE = 0.025
"""Probability that a site's own 95 % interval is below zero if joining changes nothing."""
LEAST_PROBABILITY = 0.05
"""Losses at more sites than chance gives with this probability are hardly chance."""
NO_SKILL = (
    "On these rows no procedure predicts a target better than a constant would. Before you train, look for "
    "inputs that explain more, or for more rows."
)


def summary(advice: Advice, units: Sequence[str]) -> list[str]:
    """Return the answer in sentences, the first one for all sites."""
    errors = {each.name: each for each in advice.procedures}
    alone, ours = errors[ALONE], errors[AUTO]
    return [
        *([] if advice.has_skill else [NO_SKILL]),
        _answer(advice),
        "; ".join(
            f"{name}: {format_digits(alone.rmse[c])} alone, {format_digits(ours.rmse[c])} federated, "
            f"{format_digits(errors[POOLED].rmse[c])} pooled "
            f"(RMSE{_unit(', ', units[c], name)})"
            for c, name in enumerate(advice.targets)
        )
        + ".",
        _count_verdicts(advice.sites),
        *advice.notes,
    ]


def _answer(advice: Advice) -> str:
    """Say whether to federate, with the total change of the mean squared error and its interval."""
    change, low, high = (100 * value for value in advice.total_change)
    if np.isnan(change):
        return "Stay alone: working alone has no error on held-out rows."
    if np.isnan(low):
        return _describe_few_rows(advice)
    is_clear = high < 0 if advice.recommended == AUTO else low > 0
    answer = ("Stay alone" if low > 0 else "Federate") if is_clear else "No clear difference"
    effect = "lowers" if change <= 0 else "raises"
    lead = f"{answer}: on" if advice.has_skill else "On"
    return (
        f"{lead} {_describe_rows(advice.sites)}, joining {effect} the mean squared error by "
        f"{format_digits(abs(change), 2)} % in total (95 %: {_describe_interval(low, high)})."
        f"{'' if is_clear else _describe_recommendation(advice)}"
    )


def _describe_few_rows(advice: Advice) -> str:
    """Say that the test rows do not tell, and how to get more."""
    sites = advice.sites
    needed = _describe_needed([site.test_rows for site in sites], [site.rows for site in sites])
    rows = _describe_rows(sites)
    return f"{rows} are too few to tell whether joining pays: {needed}{_describe_recommendation(advice)}"


def warn_of_few_rows(problem: Problem) -> str | None:
    """Say before training that the test rows will be too few for an answer; None if they are enough."""
    tested = [len(split) for split in problem.test.values()]
    in_time_order, most = problem.is_in_time_order, max(tested) if problem.is_in_time_order else sum(tested)
    if not any(tested) or is_decisive(most, in_time_order=in_time_order):  # none are an error of their own
        return None
    parts = problem.train, problem.validation
    others = [sum(len(part.get(site, ())) for part in parts) for site in problem.clients]
    needed = _describe_needed(tested, others)
    return f"The test rows will be too few to tell whether joining pays: {needed}"


def _describe_needed(tested: Sequence[int], others: Sequence[int]) -> str:
    """Say how many test rows a verdict takes, and how to get them; both have one number per site."""
    least = FEWEST_CONSECUTIVE_ROWS
    if sum(tested) < FEWEST_ROWS:
        needed = f"it takes {FEWEST_ROWS} in all, or {least} at a site with --time."
        return f"{needed} Hold out more with --test-fraction."
    needed = f"in order of time it takes {least} at a site."
    percent = -(-100 * least // max(test + other for test, other in zip(tested, others, strict=True)))
    if percent > 50:
        return f"{needed} No site has enough rows for that: hold out random rows, without --time."
    enough = f"Pass --test-fraction {percent / 100:g} or more"
    return f"{needed} {enough}, or hold out random rows, without --time."


def _describe_interval(low: float, high: float) -> str:
    """Format an interval of a change in percent."""
    if low < 0 < high:
        return f"from {format_digits(-low, 2)} % lower to {format_digits(high, 2)} % higher"
    first, last = (format_digits(each, 2) for each in sorted((abs(low), abs(high))))
    return f"{first} to {last} %"


def _describe_rows(sites: Sequence[SiteAdvice]) -> str:
    rows, tested = sum(site.test_rows for site in sites), sum(site.test_rows > 0 for site in sites)
    where = "all sites" if tested == len(sites) else f"{tested} of {len(sites)} sites"
    return f"{rows:,} held-out rows of {where}"


def _describe_recommendation(advice: Advice) -> str:
    """Return a sentence for advice without a clear difference."""
    if not advice.has_skill:
        return ""
    if advice.recommended == ALONE:
        return f" Working alone is recommended: joining gains less than {100 * LEAST_GAIN:g} %."
    is_uneven = advice.total_change[1] > -LEAST_GAIN
    uneven = " The change varies so much between sites that it may be chance." if is_uneven else ""
    return f"{uneven} Joining is recommended, since it helped on most problems of our benchmarks."


def _count_verdicts(sites: Sequence[SiteAdvice]) -> str:
    counts = Counter(site.verdict for site in sites)
    join, alone, undecided, untested = (counts[each] for each in get_args(Verdict))
    parts = {
        f"{'gains' if join == 1 else 'gain'} by joining": join,
        f"{'does' if alone == 1 else 'do'} better alone": alone,
        f"{'shows' if undecided == 1 else 'show'} no clear difference": undecided,
        f"{'has' if untested == 1 else 'have'} too few test rows to tell": untested,
    }
    found = {part: count for part, count in parts.items() if count}
    if len(found) == 1 < len(sites):
        everyone = "Both sites" if len(sites) == 2 else f"All {len(sites):,} sites"
        return f"{everyone} {next(iter(found))}.{_count_unclear_losses(sites)}"
    *first, last = (f"{count} {part}" for part, count in found.items())
    counted = f"{', '.join(first)}{' and ' if first else ''}{last}"
    return f"Of {pluralize(len(sites), 'site')}, {counted}.{_count_unclear_losses(sites)}"


def _count_unclear_losses(sites: Sequence[SiteAdvice]) -> str:
    """Say how many sites lose by their own intervals without being clear, and whether chance explains it."""
    count = sum(site.verdict == "undecided" and site.difference[2] < 0 for site in sites)
    if not count:
        return ""
    who = (
        "one site without a clear difference loses"
        if count == 1
        else (f"{count} sites without a clear difference lose")
    )
    own = "its own interval" if count == 1 else "their own intervals"
    tested = sum(site.verdict != "untested" for site in sites)
    losses = count + sum(site.verdict == "alone" for site in sites)
    # The probability of so many losses or more, if sites are independent.
    is_chance = bdtrc(losses - 1, tested, LOSS_BY_CHANCE) > LEAST_PROBABILITY
    found = f"{'1 loss' if losses == 1 else f'{losses} losses'} among {pluralize(tested, 'tested site')}"
    verb = "can be" if is_chance else "is hardly" if losses == 1 else "are hardly"
    return f" By {own}, {who}; {found} {verb} chance."


def describe_site(site: SiteAdvice, targets: Sequence[str], units: Sequence[str], alone: np.ndarray) -> str:
    """Return the clear verdict for one site in a sentence."""
    # name the target with the clearest effect
    bounds = site.low if site.verdict == "join" else -site.high
    c = int(np.argmax(bounds / np.maximum(alone, np.finfo(float).tiny)))
    sign, effect = (1, "lowers") if site.verdict == "join" else (-1, "raises")
    advice = "" if site.verdict == "join" else " Stay alone."
    if bounds[c] <= 0:
        return f"{site.name}: joining {effect} the error over all targets, but not clearly for any.{advice}"
    first, last = sorted((sign * site.low[c], sign * site.high[c]))
    change, unit = abs(float(site.rmse_change[c])), _unit(" ", units[c], targets[c])
    return (
        f"{site.name}: joining {effect} the error for {targets[c]} by {format_digits(change, 2)}{unit} "
        f"(95 %: {format_digits(first, 2)} to {format_digits(last, 2)}), from {format_digits(alone[c])} to "
        f"{format_digits(alone[c] - site.rmse_change[c])}.{advice}"
    )


def _unit(separator: str, unit: str, target: str) -> str:
    """Format a unit after a separator, or nothing if it is the target's name."""
    return "" if unit == target else f"{separator}{unit}"


def describe_advice(advice: Advice, units: Sequence[str], shown: int | None = None) -> list[str]:
    """Return the summary, clear verdicts for sites, at most `shown`, and the sites without one."""
    alone = next(each for each in advice.procedures if each.name == ALONE)
    clear = [m for m in _rank_sites(advice.sites) if advice.sites[m].verdict in ("join", "alone")]
    verdicts = [
        f"  {describe_site(advice.sites[m], advice.targets, units, alone.site_rmse[m])}"
        for m in clear[:shown]
    ]
    if omitted := len(clear) - len(verdicts):
        verdicts.append(f"  and {omitted} more (--all shows them).")
    for verdict, what in {"undecided": "No clear difference", "untested": "Too few test rows"}.items():
        if found := [site.name for site in advice.sites if site.verdict == verdict]:
            named = ", ".join(f"'{name}'" for name in found[:shown])
            omitted = len(found[shown:]) if shown is not None else 0
            verdicts.append(f"  {what}: {named}{f' and {omitted} more' if omitted else ''}.")
    return [*summary(advice, units), *verdicts]


def _rank_sites(sites: Sequence[SiteAdvice]) -> list[int]:
    """Order sites: a clear verdict, then test rows without one, then no test rows; large changes first."""
    is_unclear = [site.verdict not in ("join", "alone") for site in sites]
    change = [-abs(site.difference[0]) if site.test_rows else 0.0 for site in sites]
    return sorted(range(len(sites)), key=lambda m: (not sites[m].test_rows, is_unclear[m], change[m]))


def print_advice(console: Console, advice: Advice, units: Sequence[str], *, all_sites: bool = False) -> None:
    """Print sentences and tables; at most ten sites unless all are asked for."""
    shown = len(advice.sites) if all_sites else MAX_SITES
    for line in describe_advice(advice, units, shown):
        print_wrapped(console, line)
    print_table(console, _total_table(advice, units))
    print_table(console, _site_table(advice, shown))
    if advice.exchanged:
        print_wrapped(console, "What leaves each site:")
        for line in advice.exchanged:
            print_wrapped(console, f"  {line}")


def _total_table(advice: Advice, units: Sequence[str]) -> PlainTable:
    table = plain_table(title=_describe_rows(advice.sites), title_justify="left")
    table.add_column("procedure")
    table.add_column("standardized MSE", justify="right")
    for name, unit in zip(advice.targets, units, strict=True):
        table.add_column(f"RMSE {name}" + ("" if unit == name else f" ({unit})"), justify="right")
        table.add_column(f"R² {name}", justify="right")
    for each in advice.procedures:
        label = LABELS[each.name] + (" (recommended)" if each.name == advice.recommended else "")
        pairs = zip(each.rmse, each.r2, strict=True)
        cells = [format_digits(x, 4).replace("nan", "-") for pair in pairs for x in pair]
        table.add_row(label, f"{each.standardized_mse:.4f}", *cells)
    return table


def _site_table(advice: Advice, shown: int) -> PlainTable:
    """RMSE and R² of the sites that are shown: alone, federated, and one network trained on all rows."""
    errors = {each.name: each for each in advice.procedures}
    compared = [errors[name] for name in (ALONE, AUTO, POOLED)]
    tested = [m for m in _rank_sites(advice.sites) if advice.sites[m].test_rows]
    which = f"{shown} of {len(tested):,} sites" if shown < len(tested) else "each site"
    having = "" if len(tested) == len(advice.sites) else " with test rows"
    others = " (--all shows the others)" if shown < len(tested) else ""
    title = f"Held-out rows of {which}{having}{others}"
    table = plain_table(title=title, title_justify="left", collapse_padding=True, keys=2)
    for heading in ("site", "target"):
        table.add_column(heading)
    for heading in ("RMSE alone", "federated", "pooled", "R² alone", "federated", "pooled"):
        table.add_column(heading, justify="right")
    for m in tested[:shown]:
        site = advice.sites[m]
        for c, target in enumerate(advice.targets):
            rmse = [format_digits(each.site_rmse[m, c]) for each in compared]
            r2 = [f"{each.site_r2[m, c]:.2f}".replace("nan", "-") for each in compared]
            table.add_row("" if c else site.name, target, *rmse, *r2)
    return table


def draw_advice(advice: Advice, path: str | Path, source: str) -> None:
    """Draw each site's change of the standardized error with its interval; write png, svg or pdf."""
    suffix = figure_suffix(path)
    figure, axis = pyplot().subplots(figsize=_figure_size(advice), layout="constrained")
    plot_advice(advice, axis)
    axis.set_title(f"What each site gains by joining · {escape_label(source)}", loc="left", fontsize=9)
    write_bytes(Path(path), render(figure, suffix))


def _figure_size(advice: Advice) -> tuple[float, float]:
    return 7.2, 1.6 + 0.25 * len([site for site in advice.sites if site.test_rows])


def plot_advice(advice: Advice, ax: Any = None) -> Any:
    """Draw each site's change of the standardized error with its interval."""
    axis = new_axes(*_figure_size(advice)) if ax is None else ax
    tested = sorted((site for site in advice.sites if site.test_rows), key=lambda site: site.difference[0])
    places = np.arange(len(tested))
    mean, low, high = np.array([site.difference for site in tested]).T
    colors = [{"join": GREEN, "alone": "#d55e00"}.get(site.verdict, "0.6") for site in tested]
    axis.hlines(places, low, high, colors=colors, linewidth=2)
    axis.scatter(mean, places, c=colors, s=22, zorder=3)
    axis.axvline(0, color=INK, linewidth=0.8)
    axis.set_yticks(places, [escape_label(site.name) for site in tested], fontsize=8)
    axis.set_xlabel(
        "standardized MSE alone minus federated, 95 % interval (right of 0: joining helps)", fontsize=8
    )
    axis.set_title("What each site gains by joining", loc="left", fontsize=9)
    return axis
