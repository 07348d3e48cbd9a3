"""Print runs with secure sums. Their server knows only totals over clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedgram._util.text import pluralize
from fedgram.display.console import PlainTable, make_console, plain_table, print_table, print_wrapped
from fedgram.runs.expectation import SYMBOLS
from fedgram.runs.procedure import BIAS_RULES
from fedgram.runs.secure_record import SecureRecord

console = make_console()


def describe_state(record: SecureRecord) -> str:
    """State the progress: 'complete', or '2 of 8 rounds'."""
    rounds = record.document["settings"]["rounds"]
    if record.complete:
        return "complete"
    if record.number == rounds:
        return f"{pluralize(rounds, 'round')}, models not chosen yet"
    return f"{record.number} of {pluralize(rounds, 'round')}"


def list_document(records: Sequence[SecureRecord]) -> list[dict[str, Any]]:
    """Return the secure runs of `fedgram runs list --json`."""
    return [
        {"folder": str(each.folder), "complete": each.complete, "setup": each.describe()} for each in records
    ]


def print_list(records: Sequence[SecureRecord]) -> None:
    """Print the secure runs of `fedgram runs list`."""
    if not records:
        return
    print_wrapped(console, "With secure sums, so that the server saw totals over clients only:")
    headings = ("data", "backbone", "procedure", "seed", "state")
    table = plain_table(*headings, text=headings, collapse_padding=True)
    for each in records:
        setup = each.describe()
        data = f"{setup['name']} ({setup['kind']})"
        table.add_row(data, setup["backbone"], setup["procedure"], str(setup["seed"]), describe_state(each))
    print_table(console, table)


def print_run(record: SecureRecord) -> None:
    """Print one secure run of `fedgram runs show`, round by round."""
    setup = record.describe()
    print_wrapped(
        console,
        f"{setup['procedure']}/seed-{setup['seed']} on {setup['name']} ({setup['kind']}), "
        f"{setup['backbone']}, with secure sums: {describe_state(record)}",
    )
    print_wrapped(console, str(record.folder))
    for sentence in record.sentences:
        print_wrapped(console, sentence)
    if rounds := record.document["rounds"]:
        print_table(console, _round_table(rounds, has_limit=not record.procedure.without_limit))


def _round_table(rounds: Sequence[dict[str, Any]], *, has_limit: bool) -> PlainTable:
    """Means over all rows; the error to the limit only where there is one."""
    limit = [f"error to {SYMBOLS[target]}" for target in rounds[0]["error"]] if has_limit else []
    errors = [f"test MSE, {rule}" for rule in BIAS_RULES]
    table = plain_table("round", "clients", *limit, *errors, text=(), collapse_padding=True)
    for each in rounds:
        tested = each["test_mse"] or [None] * len(BIAS_RULES)
        numbers = [*each["error"].values(), *tested] if has_limit else tested
        shown = ("none" if number is None else f"{number:.3e}" for number in numbers)
        table.add_row(str(each["round"]), str(len(each["clients"])), *shown)
    return table
