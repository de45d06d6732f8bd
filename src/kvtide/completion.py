"""Completion for shells: `kvtide --show-completion` prints what a shell needs, `--install-completion` puts it there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click
from click.shell_completion import ShellComplete, get_completion_class

from kvtide.errors import ConfigError

COMPLETE_VARIABLE = "_KVTIDE_COMPLETE"
"""Set by the shell when it asks what may come next."""
SHELLS = ("bash", "zsh", "fish")
_FILES = {
    "bash": ".local/share/bash-completion/completions/kvtide",
    "zsh": ".zfunc/_kvtide",
    "fish": ".config/fish/completions/kvtide.fish",
}
"""Where shells look, in the home folder: bash with the package bash-completion, zsh with the lines of `_ZSHRC`."""
_ZSHRC = "fpath+=~/.zfunc; autoload -Uz compinit; compinit"


def completion_options() -> list[click.Option]:
    """Return the two options."""
    return [
        _option("--show-completion", "print completion for this shell, or for bash, zsh or fish", _show),
        _option("--install-completion", "install completion for this shell, or for bash, zsh or fish", _install),
    ]


def _option(name: str, text: str, act: Callable[[str], None]) -> click.Option:
    def callback(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None and not ctx.resilient_parsing:
            act(_shell(name, value))
            ctx.exit()

    return click.Option(
        [name],
        is_flag=False,
        flag_value="",
        metavar="[SHELL]",
        is_eager=True,
        expose_value=False,
        help=text,
        callback=callback,
    )


def _shell(option: str, given: str) -> str:
    shell = given or Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise ConfigError(option, shell, f"one of {', '.join(SHELLS)}")
    return shell


def script(shell: str) -> str:
    """Return what a shell has to read."""
    kind = get_completion_class(shell)
    assert kind is not None
    found = kind(click.Command("kvtide"), {}, "kvtide", COMPLETE_VARIABLE)
    return ShellComplete.source(found)  # not its own, which asks which bash is installed


def _show(shell: str) -> None:
    click.echo(script(shell))


def _install(shell: str) -> None:
    path = Path.home() / _FILES[shell]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script(shell), encoding="utf-8")
    click.echo(f"completion for {shell} is in {path}")
    if shell == "zsh":
        rc = Path.home() / ".zshrc"
        before = rc.read_text(encoding="utf-8") if rc.exists() else ""
        if _ZSHRC not in before:
            rc.write_text(f"{before.rstrip()}\n{_ZSHRC}\n".lstrip(), encoding="utf-8")
    click.echo("it works in shells that are started from now on")
