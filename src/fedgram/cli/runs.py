"""Commands on trained runs: list, show, compare, predict, check, audit, readmit."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgram._util.errors import InputError
from fedgram._util.text import pluralize
from fedgram.cli import options
from fedgram.cli.app import app, print_json, print_line
from fedgram.cli.options import Client, Json, Site, output_option

if TYPE_CHECKING:
    from fedgram.runs import StoredRun
    from fedgram.runs.audit import AuditSummary
    from fedgram.runs.secure_record import SecureRecord

runs_app = typer.Typer(
    no_args_is_help=True,
    help="List, show, compare and verify trained runs, and predict new rows with them. Only `predict` needs "
    "PyTorch.",
)
app.add_typer(runs_app, name="runs")

Root = Annotated[Path, typer.Argument(help="Folder with runs, or the folder of one run.")]


@runs_app.command("list")
def list_runs(root: Root = Path("runs"), as_json: Json = False) -> None:
    """List all runs with their data, network, procedure, seed, state and cost."""
    from fedgram.display import run_tables, secure_run_tables

    found, secure = _find_runs(root)
    if as_json:
        print_json(
            {**run_tables.list_document(found), "secure_runs": secure_run_tables.list_document(secure)}
        )
    else:
        run_tables.print_list(found)
        secure_run_tables.print_list(secure)


@runs_app.command()
def show(root: Root = Path("runs"), as_json: Json = False) -> None:
    """Show the measurements of each run, round by round.

    error: relative error of the shared head's Gram to the procedure's target. error to recursion: the same,
    to the exact recursion from the same start. delta: distance of the returned heads from the selected heads.
    objective gap: relative excess of the clients' objectives over their minimum. test MSE: with the shared
    head, under each bias rule. Runs with secure sums have means over all clients only.
    """
    from fedgram.display import run_tables, secure_run_tables
    from fedgram.runs.measure import measure

    found, secure = _find_runs(root)
    documents: list[dict[str, Any]] = []
    for run in found:
        with _name_damaged(run):
            if not as_json:
                run_tables.print_run(run)
            elif run.account.rounds:
                documents.append(measure(run).document())
                json.dumps(documents[-1], allow_nan=False)  # fails here, where the run is known
    if as_json:
        print_json({"runs": documents, "secure_runs": [record.document for record in secure]})
        return
    for record in secure:
        secure_run_tables.print_run(record)


def _find_runs(root: Path) -> tuple[list[StoredRun], list[SecureRecord]]:
    """Read all runs below a folder; raise InputError if there are none."""
    from fedgram.runs import Runs
    from fedgram.runs.secure_record import find_secure_records

    secure, runs = find_secure_records(root), Runs(root)
    return (list(runs) if secure else runs.require()), secure


@contextmanager
def _name_damaged(run: StoredRun) -> Iterator[None]:
    """Raise InputError for a run whose arrays do not fit together or are not finite."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, TypeError, IndexError) as error:
        raise InputError(
            f"The run in '{run.folder}' is damaged: {error}. Verify it with 'fedgram runs check'.",
            field=str(run.folder),
        ) from None


@runs_app.command()
def compare(
    root: Root = Path("runs"),
    figure: options.Figure = None,
    as_json: Json = False,
) -> None:
    """Compare procedures with each other and with the prediction: mean ± standard deviation over seeds.

    error: relative error of the last Gram to the procedure's target. predicted gap, measured gap: relative
    error of the target and of the last Gram to centralized training. trajectory: median error to the exact
    recursion from the same start. delta: distance of the returned heads from the selected heads. objective
    gap: relative excess of the clients' objectives over their minimum.
    """
    from fedgram.display import run_tables

    found, secure = _find_runs(root)
    for record in secure:
        print_line(
            f"Left out '{record.folder}': with secure sums nobody has each client's head. Use 'fedgram runs "
            "show'.",
            err=True,
        )
    if figure is not None:
        from fedgram.display.run_figure import draw_comparison
        from fedgram.runs.compare import compare_runs

        if not (settings := compare_runs(found)):
            raise InputError(
                f"Nothing to draw: none of the {pluralize(len(found))} in '{root}' is finished.",
                field="figure",
            )
        draw_comparison(settings, figure)
        typer.echo(f"Wrote {figure}.", err=True)
    if as_json:
        print_json(run_tables.comparison_document(found))
    else:
        run_tables.print_comparison(found)


@runs_app.command()
def predict(
    folder: Annotated[
        Path,
        typer.Argument(help="Folder of one run that was trained on a table, or a site's private folder."),
    ],
    data: Annotated[str, typer.Argument(help="CSV, TSV or Parquet file with the run's input columns.")],
    client: Client = None,
    site: Site = None,
    output: Annotated[Path | None, output_option("-o", "--output", help="CSV file to write.")] = None,
    as_json: Json = False,
) -> None:
    """Predict the targets of new rows with the final networks of a run.

    Each row is predicted by its client's network. A centralized run has one network for all rows and needs
    neither --client nor --site. The output has the rows and columns of the table, and one column per target,
    named 'TARGET predicted' if the table has the target; the log then has its error. The private folder of a
    Flower site has that site's model, which predicts all rows.
    """
    from fedgram.cli.checks import check_not_overwritten, reject_flags
    from fedgram.display.sentences import format_digits
    from fedgram.training.inference import predict_table

    check_not_overwritten(output, [data])
    if output is not None and output.suffix.lower() not in ("", ".csv"):
        raise InputError(f"The output must be a CSV file: '{output}'. Use {output.stem}.csv.", field="output")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        if _is_private_folder(folder):
            from fedgram.flower.predict_at_site import predict_site_table

            reject_flags({"--client": client, "--site": site}, "runs, not to a site's private folder")
            rows = predict_site_table(folder, data)
        else:
            rows = predict_table(folder, data, client, site)
    for warning in caught:
        print_line(str(warning.message), err=True)
    if as_json:
        print_json(rows.document())
    elif output is None:
        typer.echo(rows.csv(), nl=False)
    if output is not None:
        rows.save(output)
        typer.echo(f"Wrote {output}: {pluralize(len(rows.clients), 'row')}.", err=True)
    for error in rows.errors():
        r2 = "" if isnan(error.r2) else f", R² {error.r2:.2f}"
        on = f"on {pluralize(error.rows, 'row')} with '{error.target}'"
        print_line(f"Error {on}: RMSE {format_digits(error.rmse)}{r2}.", err=True)


def _is_private_folder(path: Path) -> bool:
    """Whether a path has models of a Flower site, not runs."""
    from fedgram.runs.store import MANIFEST, MODEL, find_lost_manifests

    has_runs = any(path.rglob(MANIFEST)) or bool(find_lost_manifests(path))
    return path.name == MODEL or (any(path.rglob(MODEL)) and not has_runs)


@runs_app.command()
def check(root: Root = Path("runs"), as_json: Json = False) -> None:
    """Verify the checksums of all files below a folder of runs, or of a site's private files.

    It exits with 2 if a file is damaged, missing, or not the one that its manifest names.
    """
    from fedgram.runs.check import check_folder

    checked = check_folder(root)
    if as_json:
        print_json(checked.document())
    else:
        for note in checked.notes:
            print_line(f"Note: {note}")
        for problem in checked.problems:
            print_line(problem)
        typer.echo(f"Verified {pluralize(checked.files, 'file')} in '{root}'.", err=True)
    if checked.problems:
        number = pluralize(len(checked.problems), "problem")
        raise InputError(f"Found {number} in '{root}'. Restore the files, or train again.", field=str(root))


@runs_app.command()
def audit(
    root: Root = Path("runs"),
    last: Annotated[
        str | None, typer.Option(help="Hash of a line that the log must contain, noted earlier.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify the audit logs of federations, and show which replies were refused.

    Every line must have the hash of the line before it. Every accepted reply must be signed with the key that
    its client introduced itself with (needs the extra `flower`). The log of a secure run has the clients of
    each sum instead of replies. The command does not verify that a key belongs to a site: compare the keys
    once. Store the last hash elsewhere: a log that was replaced as a whole does not contain it.
    """
    from fedgram.runs.audit import AUDIT, read_audit
    from fedgram.runs.check import read_anchor

    if not (paths := sorted(root.rglob(AUDIT))):
        raise InputError(f"No audit log found in '{root}'. Only Flower federations have one.", field="root")
    for path in paths:
        read_audit(path, read_anchor(path))
    found = [read_audit(path, last) for path in paths]
    if as_json:
        print_json({"audits": [summary.document() for summary in found]})
        return
    for summary in found:
        typer.echo(
            f"{summary.path}: {summary.lines} lines, chained; {_describe_signatures(summary)}; last "
            f"{summary.last}"
        )
        if summary.sums:
            print_line(
                f"  {pluralize(summary.sums, 'secure sum')}: the log names the clients of each, and has no "
                "signatures of masked replies"
            )
        for client, number in sorted(summary.dropouts.items()):
            print_line(f"  {client} dropped out of {pluralize(number, 'sum')}")
        for client, outcomes in summary.document()["replies"].items():
            counts = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items() if number)
            suspended = f"; suspended: {summary.suspended[client]}" if client in summary.suspended else ""
            print_line(f"  replies of {client}: {counts}{suspended}")
        for refusal in summary.refusals:
            who = refusal.get("client") or f"node {refusal.get('node')}"
            when = f", round {refusal['round']}" if "round" in refusal else ""
            print_line(f"  {refusal['time']} refused {who}{when}: {refusal.get('reason')}")


def _describe_signatures(summary: AuditSummary) -> str:
    """State how many signatures are valid, and of what."""
    if summary.signatures is None:
        return 'signatures: not verified, which needs pip install "fedgram[flower]"'
    introduced, answered = summary.introductions, summary.signatures - summary.introductions
    replies = "" if summary.sums else f", {answered} of replies"
    return f"valid signatures: {introduced} of introductions{replies}"


@runs_app.command()
def readmit(
    folder: Annotated[Path, typer.Argument(help="Folder of one Flower run on the server.")],
    site: Annotated[str, typer.Argument(help="Name of the suspended site.")],
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Also accept another key and other rows from the site.")
    ] = False,
) -> None:
    """Let a suspended site back into a federation, before its next round."""
    from fedgram.runs.readmission import readmit_site

    readmit_site(folder, site, new_key=new_key)
    also = ", also with another key and other rows" if new_key else ""
    print_line(f"The server readmits '{site}' before its next round{also}.", err=True)
