"""Commands that take each option once, so that none is silently replaced by a later one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import click
import typer
from typer.core import TyperCommand

from fedgram._util.errors import InputError


class OnceCommand(TyperCommand):
    """A command that refuses an option given twice, unless it is one that collects its values."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as ever, after a look at what was given."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option, times in Counter(given).items():
            if isinstance(option, click.Option) and times > 1 and not (option.multiple or option.is_flag):
                name = max(option.opts, key=len)
                raise InputError(
                    f"{name} is given {times} times; give it once, with all of it.", field=option.name
                )
        return super().parse_args(ctx, args)


class App(typer.Typer):
    """An application with such commands."""

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        """Register a command."""
        return super().command(name, **{"cls": OnceCommand, **options})
