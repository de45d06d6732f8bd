"""What commands are made of: options that are refused by the name they were written with, help with examples."""

from __future__ import annotations

import math
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from kvtide.errors import ConfigError
from kvtide.options import did_you_mean, nearest, one_of

Arguments = SimpleNamespace
"""What was written, by the names of the options with underscores."""
Run = Callable[[Arguments], int]
"""Does what a command is for, and returns the exit code."""

SIZES = "K, M, G, T and P count by 1024 as KiB to PiB do, KB to PB by 1000"
"""What sizes mean, for help."""
HELP_COLUMNS = 80
"""Of lines that click does not wrap."""


def exit_codes(well: str = "all is well", wrong: str | None = None, *, such_as: str | None = None) -> str:
    """Return the last lines of a command's help. 1: it ran and found something. 2 means the same of every command."""
    found = "" if wrong is None else f"1 {wrong}, "
    example = "" if such_as is None else f" ({such_as})"
    codes = f"Exit codes: 0 {well}, {found}2 it was asked for something that cannot be done{example}"
    return f"\n\n{textwrap.fill(codes, HELP_COLUMNS, subsequent_indent='  ')}"


_EXAMPLE = re.compile(r"^  (kvtide \S.*?)(?:  .*)?$", re.MULTILINE)
_WHOLE = re.compile(r"-?[0-9]{1,18}", re.ASCII)


class Whole(click.ParamType[int]):
    """A whole number."""

    name = "N"

    def __init__(self, minimum: int = 0, maximum: int | None = None) -> None:
        self._minimum, self._maximum = minimum, maximum
        upto = "" if maximum is None else f" and at most {maximum}"
        self._expected = f"a whole number of at least {minimum}{upto}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it."""
        number = int(value) if _WHOLE.fullmatch(str(value)) else None
        if number is None or number < self._minimum or (self._maximum is not None and number > self._maximum):
            _refuse(param, value if number is None else number, self._expected)
        return number


class Real(click.ParamType[float]):
    """A number above 0, from 0 on, or between bounds."""

    name = "N"

    def __init__(self, minimum: float | None = None, maximum: float | None = None) -> None:
        self._minimum, self._maximum = minimum, maximum
        least = "a number above 0" if minimum is None else f"a number of at least {minimum:g}"
        self._expected = least if maximum is None else f"{least} and at most {maximum:g}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        enough = number > 0 if self._minimum is None else number >= self._minimum
        if not enough or not number < math.inf or (self._maximum is not None and number > self._maximum):
            _refuse(param, value, self._expected)
        return number


class Choice(click.ParamType[str]):
    """One of a few words. Capitals do not matter."""

    name = "NAME"

    def __init__(self, choices: Sequence[str]) -> None:
        self._choices = tuple(choices)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Read it."""
        if value.lower() not in self._choices:
            _refuse(param, value, one_of(value, self._choices))
        return str(value).lower()

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return those that begin like this."""
        return [CompletionItem(choice) for choice in self._choices if choice.startswith(incomplete.lower())]


class Suggested(click.ParamType[str]):
    """Any text, of which shells know some: who reads it knows what is wrong with another."""

    name = "NAME"

    def __init__(self, choices: Sequence[str]) -> None:
        self._choices = tuple(choices)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return those that begin like this."""
        return [CompletionItem(choice) for choice in self._choices if choice.startswith(incomplete)]


class File(click.ParamType[str]):
    """A path, which shells can complete. Who opens it knows what is wrong with it."""

    name = "FILE"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Let the shell do it."""
        return [CompletionItem(incomplete, type="file")]


def _refuse(param: click.Parameter | None, value: object, expected: str) -> NoReturn:
    raise ConfigError(shown(param), value, expected)


def misused(text: str) -> click.UsageError:
    """Return an error for options that do not go together, or not here."""
    return click.UsageError(text, click.get_current_context(silent=True))


def need_terminal(what: str) -> None:
    """Refuse to ask where nobody can answer: then --yes has to say that it is meant."""
    if not sys.stdin.isatty():
        raise misused(f"not a terminal: add --yes to {what}")


def refuse_written(names: Collection[str], expected: str) -> None:
    """Refuse options that somebody wrote, with whatever value, where they have no meaning."""
    context = click.get_current_context()
    for param in context.command.params:
        name = str(param.name)
        if name in names and context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise ConfigError(shown(param), context.params[name], expected)


def shown(param: click.Parameter | None) -> str:
    """Return what people call an option or argument."""
    if isinstance(param, click.Option):
        return param.opts[0]
    return str(param.metavar).removesuffix("...").strip("[]") if param is not None else "value"


def option(
    name: str,
    text: str,
    kind: click.ParamType[Any] | None = None,
    *,
    default: object = None,
    metavar: str | None = None,
    many: bool = False,
) -> click.Option:
    """Return an option with a value. Its help says the default, if it has one."""
    said = text if default is None or "(default" in text else f"{text} (default: {default})"
    metavar = metavar or (kind.name if kind is not None else "TEXT")
    return click.Option(
        [name], type=kind or click.STRING, default=None if many else default, metavar=metavar, help=said, multiple=many
    )


def maybe(name: str, text: str, *, metavar: str) -> click.Option:
    """Return an option that may have a path, or stand alone: then it is empty."""
    return click.Option([name], type=File(), is_flag=False, flag_value="", default=None, metavar=metavar, help=text)


def flag(name: str, text: str) -> click.Option:
    """Return an option without a value."""
    return click.Option([name], is_flag=True, help=text)


def argument(
    name: str, *, required: bool = False, kind: click.ParamType[Any] | None = None, many: bool = False
) -> click.Argument:
    """Return what stands in a command without a name. `many`: one or more of them."""
    metavar = f"{name}..." if many else name if required else f"[{name}]"
    count = -1 if many else 1
    return click.Argument([name.lower()], metavar=metavar, required=required, type=kind or File(), nargs=count)


class _Help(click.Command):
    """Text and examples are shown as they were written, not wrapped anew. Errors know whose options they are about."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Say it as the other options do."""
        found = super().get_help_option(ctx)
        if found is not None:
            found.help = "show this help"
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read what was written."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise self._no_such_option(error.option_name, ctx) from None
        except click.MissingParameter as error:
            raise click.UsageError(f"{shown(error.param)} is missing{self._for_example()}", ctx) from None
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def _for_example(self) -> str:
        """Return the first example, without what is said about it."""
        found = _EXAMPLE.search(self.epilog or "")
        return "" if found is None else f", for example: {found[1]}"

    def _no_such_option(self, name: str, ctx: click.Context) -> click.NoSuchOption:
        """Return an error with the option that may have been meant. The dashes of all options are no likeness."""
        known = [opt for param in self.get_params(ctx) for opt in param.opts if isinstance(param, click.Option)]
        near = nearest(name.lstrip("-"), [opt.lstrip("-") for opt in known])
        return click.NoSuchOption(name, possibilities=None if near is None else [f"--{near}"], ctx=ctx)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what it does."""
        if self.help:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(self.help)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        if self.epilog:
            formatter.write(f"\n{self.epilog}\n")


class Group(_Help, click.Group):
    """Several commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read what was written, or say which commands there are."""
        if not args and not self.invoke_without_command and not ctx.resilient_parsing:
            known = ", ".join(self.list_commands(ctx))
            raise click.UsageError(f"a command is missing, one of {known}{self._for_example()}", ctx)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which one may have been meant."""
        known = self.list_commands(ctx)
        if args[0] not in known:
            hint = did_you_mean(args[0], known)
            raise click.UsageError(f"no such command: {args[0]!r}; {hint}known are {', '.join(known)}", ctx)
        return super().resolve_command(ctx, args)


def command(
    name: str, *, text: str, examples: str, params: Sequence[click.Parameter], run: Run, summary: str = ""
) -> click.Command:
    """Return a command that calls `run`. What it refuses by a setting's name is told by the option's name.

    `summary` is for the help of a group.
    """
    called = _by_names_of_options(run, params)

    def callback(**values: Any) -> int:
        return called(Arguments(**values))

    epilog = f"Examples:\n{examples}"
    return _Help(name, callback=callback, params=list(params), help=text, epilog=epilog, short_help=summary)


def _by_names_of_options(run: Run, params: Sequence[click.Parameter]) -> Run:
    """Return a function that runs it, and tells what it refuses by the names of options."""
    by_name: Mapping[str, click.Parameter] = {str(param.name): param for param in params}

    def called(args: Arguments) -> int:
        try:
            return run(args)
        except ConfigError as error:
            name, bracket, part = error.option.partition("[")  # tier[0].path: of the first --tier
            if name not in by_name:
                raise
            raise ConfigError(shown(by_name[name]) + bracket + part, error.value, error.expected) from error

    return called


def group(
    name: str,
    *,
    text: str,
    examples: str,
    commands: Sequence[click.Command],
    params: Sequence[click.Parameter] = (),
    run: Run | None = None,
) -> Group:
    """Return a command that has commands of its own. With `run` it does something without one of them, too."""
    inner = {str(each.name): each for each in commands}
    epilog = f"Examples:\n{examples}"
    if run is None:
        return Group(name, commands=inner, help=text, epilog=epilog, no_args_is_help=False)
    called = _by_names_of_options(run, params)

    def callback(**values: Any) -> int:
        context = click.get_current_context()
        if context.invoked_subcommand is None:
            return called(Arguments(**values))
        if any(value not in (None, False, ()) for value in values.values()):
            raise click.UsageError(f"options of {context.invoked_subcommand!r} go behind it", context)
        return 0

    return Group(
        name,
        commands=inner,
        params=list(params),
        callback=callback,
        invoke_without_command=True,
        help=text,
        epilog=epilog,
        no_args_is_help=False,
    )
