"""The reader's own runs: sentences, a figure and tables of errors in the targets' units, by site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgram._util.errors import InputError
from fedgram._util.text import describe_seeds, percent, pluralize, quote_list
from fedgram.display import run_sentences
from fedgram.display.explorer import page as explorer
from fedgram.display.plotting import draw_seeds, escape_label, pyplot, render, tag_runs
from fedgram.display.run_figure import MOST_INSIDE, plot_comparison, run_id, style_groups
from fedgram.display.sentences import format_digits
from fedgram.display.site_errors import SiteErrors, Tested, has_own_units
from fedgram.display.training_table import format_spread
from fedgram.paper.networks.panels import label_log_axes
from fedgram.paper.plots import SETTINGS, SVG_SETTINGS, label_powers, make_panels
from fedgram.paper.report.story import Sentence
from fedgram.paper.report.svg import FigureEmbedder
from fedgram.runs.compare import Comparison, Group
from fedgram.runs.procedure import BIAS_RULES

ALL_SITES = "all sites"
MOST_TOLD = 4  # procedures with a sentence of their own; the table has all
MOST_DRAWN = 40  # sites in a figure; it is then about two screens high

Errors = Mapping[Group, SiteErrors]
"""Errors on test rows of the procedures that have them."""


def describe_training(
    settings: Sequence[Comparison], tested: Tested, embed: FigureEmbedder
) -> list[dict[str, Any]]:
    """Template values of the reader's own runs, by setting."""
    return [_describe_setting(each, find_errors(each, tested), embed) for each in settings]


def summarize_training(settings: Sequence[Comparison]) -> str:
    """Count settings and runs, without the final full stop."""
    runs = sum(len(group.runs) for setting in settings for group in setting.groups)
    names = ", ".join(setting.title for setting in settings)
    return f"{pluralize(runs, 'trained run')} ({names})"


def find_errors(setting: Comparison, tested: Tested) -> Errors:
    """Collect the errors of all procedures that have some."""
    found = {group: SiteErrors.from_group(group, tested) for group in setting.groups}
    return {group: errors for group, errors in found.items() if errors is not None}


def describe_explored(settings: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Describe the target moments of each setting for the explorer, as far as it can show them."""
    found = []
    for number, setting in enumerate(settings):
        moments = setting.groups[0].runs[0].prediction.moments
        try:
            data = explorer.describe_data(moments, setting.setup.settings.penalty, setting.title)
        except InputError:  # one client, or too many
            continue
        found.append(data | {"id": f"own-{number}"})
    return found


def _describe_setting(setting: Comparison, errors: Errors, embed: FigureEmbedder) -> dict[str, Any]:
    limit, metrics = ["target"] if setting.limited else [], setting.metrics
    rows = [
        [setting.label(group), *(group.target for _ in limit), *map(group.spread, metrics)]
        for group in setting.groups
    ]
    return {
        "title": setting.title,
        "kinds": [setting.setup.data.kind],
        "story": tell_runs(setting, errors),
        "sites": _draw_sites(setting, errors, embed),
        "tables": _list_tables(setting, errors),
        "units": " in the targets' own units" if has_own_units(setting) else "",
        "scale": setting.scale,
        "figures": _draw_rounds(setting, embed),
        "columns": ["procedure", *limit, *metrics],
        "rows": [[str(cell).split(" ± ") for cell in row] for row in rows],  # [mean] or [mean, deviation]
        "warnings": setting.warnings,
    }


# ---- sentences ----


def tell_runs(setting: Comparison, errors: Errors) -> list[Sentence]:
    """Say in a few sentences what was trained, how well it predicts, and where its heads end."""
    data, config = setting.setup.data, setting.setup.settings
    seeds = {run.setup.seed for group in setting.groups for run in group.runs}
    sentences = [
        Sentence(
            "Data",
            f"{pluralize(len(data.clients), 'site')} with {sum(data.train_rows):,} training and "
            f"{sum(data.test_rows):,} test rows; {_name_targets(data.targets)}.",
        ),
        Sentence(
            "Trained",
            f"{quote_list([group.name for group in setting.groups])} with {describe_seeds(seeds)}; "
            f"{pluralize(config.rounds, 'round')} of {pluralize(config.epochs, 'epoch')}.",
        ),
    ]
    if errors:
        sentences += _tell_errors(setting, errors)
    else:
        compared = "; only heads are compared" if setting.limited else ""
        has_rows = any(setting.setup.data.test_rows)
        reason = "Errors on test rows were not stored" if has_rows else "There are no test rows"
        sentences.append(Sentence("Errors", f"{reason}{compared}."))
    sentences += [
        Sentence("Joining", f"'{group.name}', seed {run.setup.seed}: {run.joining.describe()}")
        for group in setting.groups
        for run in group.runs
        if run.joining
    ]
    return [*sentences, Sentence("Heads", _tell_heads(setting))] if setting.limited else sentences


def _tell_heads(setting: Comparison) -> str:
    """State where the heads of every procedure end; of many, how close the first and the last come."""
    if len(setting.limited) <= MOST_TOLD:
        return " ".join(run_sentences.state_outcome(setting, group) for group in setting.limited)
    ends = [f"{percent(error)} ('{name}')" for error, name in _rank_ends(setting)]
    return f"{len(ends)} procedures end between {ends[0]} and {ends[-1]} away from their predicted limits."


def _rank_ends(setting: Comparison) -> list[tuple[float, str]]:
    return sorted((group.spread("error").mean, group.name) for group in setting.limited)


def _name_targets(targets: Sequence[str]) -> str:
    noun = "target" if len(targets) == 1 else "targets"
    return f"{noun} {', '.join(targets)}"


def _tell_errors(setting: Comparison, errors: Errors) -> list[Sentence]:
    targets = setting.setup.data.targets
    best = max(errors, key=lambda group: _mean_r2(errors[group]))
    rmse, r2 = (each.mean(axis=0) for each in (errors[best].total_rmse, errors[best].total_r2))
    numbers = "; ".join(
        f"{target}: RMSE {format_digits(rmse[c])}" + ("" if np.isnan(r2[c]) else f", R² {r2[c]:.2f}")
        for c, target in enumerate(targets)
    )
    rank = " best" if len(errors) > 1 else ""
    sentences = [Sentence("Errors", f"'{best.name}' predicts test rows{rank}. {numbers}.")]
    alone = next((group for group in errors if group.name == "local"), None)
    joined = [group for group in errors if not group.runs[0].setup.procedure.centralized]
    joined.sort(key=lambda group: _mean_r2(errors[group]))
    if alone is not None and joined[-1] is not alone:
        gain = _tell_gain(setting, joined[-1].name, errors[joined[-1]], errors[alone])
        sentences.append(Sentence("Joining", gain))
    return sentences


def _mean_r2(errors: SiteErrors) -> float:
    """Mean over seeds and targets; targets that do not vary on test rows have none."""
    found = errors.total_r2[np.isfinite(errors.total_r2)]
    return float(found.mean()) if found.size else -np.inf


def _tell_gain(setting: Comparison, name: str, best: SiteErrors, alone: SiteErrors) -> str:
    better = best.rmse.mean(axis=0) < alone.rmse.mean(axis=0)
    known = np.isfinite(alone.rmse.mean(axis=0))
    counts = "; ".join(
        f"{target}: {better[:, c].sum()} of {known[:, c].sum()}"
        for c, target in enumerate(setting.setup.data.targets)
    )
    return f"Sites where the error of '{name}' is lower than alone ('local'). {counts}."


# ---- tables ----


def _list_tables(setting: Comparison, errors: Errors) -> list[dict[str, Any]]:
    """One table per target: sites by procedures."""
    data, columns = setting.setup.data, list(errors.values())
    return [
        {
            "target": target,
            "columns": [setting.label(group) for group in errors],
            "rows": [
                _describe_site(
                    ALL_SITES,
                    sum(data.test_rows),
                    [(each.total_rmse[:, c], each.total_r2[:, c]) for each in columns],
                ),
                *(
                    _describe_site(
                        site, data.test_rows[m], [(each.rmse[:, m, c], each.r2[:, m, c]) for each in columns]
                    )
                    for m, site in enumerate(data.clients)
                ),
            ],
        }
        for c, target in enumerate(data.targets)
        if columns
    ]


def _describe_site(site: str, test_rows: int, values: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    """One row: RMSE and R² (seeds,) of each procedure; the least RMSE is marked."""
    means = [float(rmse.mean()) for rmse, _ in values]
    least = np.nanmin(means) if np.isfinite(means).any() and len(means) > 1 else np.nan
    cells = [
        {
            "key": "" if np.isnan(mean) else mean,
            "rmse": format_spread(rmse),
            "r2": format_spread(r2, "{:.2f}".format),
            "is_best": mean == least,
        }
        for mean, (rmse, r2) in zip(means, values, strict=True)
    ]
    return {"site": site, "test_rows": test_rows, "cells": cells}


# ---- figures ----


def _draw_sites(setting: Comparison, errors: Errors, embed: FigureEmbedder) -> list[str]:
    """Draw a panel per target: RMSE of every procedure and seed at each site."""
    if not errors:
        return []
    with pyplot().rc_context(SETTINGS):
        panels = {
            target: render(_plot_sites(setting, errors, c), "svg")
            for c, target in enumerate(setting.setup.data.targets)
        }
    return [
        embed(content, f"RMSE of {target} at each site, {setting.title}")
        for target, content in panels.items()
    ]


def _plot_sites(setting: Comparison, errors: Errors, target: int) -> Any:
    data = setting.setup.data
    sites = [ALL_SITES, *data.clients[:MOST_DRAWN]]
    heights = -np.arange(len(sites))
    figure, (axis,) = make_panels(1, 1, (4.6, 1.2 + 0.19 * (len(sites) + len(errors))))
    for group, line, markers in style_groups(setting.groups, errors):
        rmse = np.concatenate([errors[group].total_rmse[:, None], errors[group].rmse], axis=1)
        label = escape_label(setting.label(group))
        for number, run in enumerate(group.runs):
            values = rmse[number, : len(sites), target]
            (drawn,) = axis.plot(
                values, heights, ls="none", color=line["color"], label=None if number else label,
                **markers,
            )  # fmt: skip
            tag_runs(drawn, [run_id(run.setup)])
    axis.axhline(-0.5, color="0.8", lw=0.7)
    axis.set_yticks(heights, [escape_label(site) for site in sites])
    left_out = len(data.clients) - MOST_DRAWN
    more = f", without {pluralize(left_out, 'more site')}" if left_out > 0 else ""
    axis.set(xlabel=f"RMSE on test rows, {data.kind} data{more}", title=escape_label(data.targets[target]))
    figure.legend(loc="outside lower left", ncols=1 if len(errors) < 4 else 2)
    return figure


def _draw_rounds(setting: Comparison, embed: FigureEmbedder) -> list[str]:
    """Draw Grams of procedures with a known limit, and test errors where there are test rows."""
    figures = {}
    if setting.limited:
        with pyplot().rc_context(SVG_SETTINGS):
            figures["Errors of the Gram"] = render(plot_comparison([setting]), "svg")
    if any(np.isfinite(run.test_mse).any() for group in setting.groups for run in group.runs):
        with pyplot().rc_context(SETTINGS):
            figures["Test errors"] = render(_plot_test_errors(setting), "svg")
    return [embed(content, f"{label} over rounds, {setting.title}") for label, content in figures.items()]


def _plot_test_errors(setting: Comparison) -> Any:
    """Draw the test error of every seed over rounds, under the procedure's bias rule."""
    figure, (axis,) = make_panels(1, 1, (6, 3.2))
    for group, line, markers in style_groups(setting.groups, setting.groups):
        rule = BIAS_RULES.index(group.runs[0].setup.procedure.bias)
        errors = np.stack([run.test_mse[:, rule] for run in group.runs], axis=1)
        rounds, names = np.arange(1, len(errors) + 1), [run_id(run.setup) for run in group.runs]
        label = escape_label(setting.label(group))
        draw_seeds(axis, rounds, errors, runs=names, label=label, **line, **markers)
    unit = ", standardized targets" if has_own_units(setting) else ""
    is_chosen = any(run.chosen_test_mse is not None for group in setting.groups for run in group.runs)
    title = f"Test error over rounds{', before the final models are chosen' if is_chosen else ''}"
    axis.set(xlabel="round", ylabel=f"test MSE{unit}", yscale="log", title=title)
    axis.xaxis.get_major_locator().set_params(integer=True)
    if len(setting.groups) > MOST_INSIDE:
        figure.legend(loc="outside lower left", ncols=2)
    else:
        axis.legend()
    label_log_axes(axis)
    label_powers(axis)
    return figure
