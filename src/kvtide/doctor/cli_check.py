"""The command line of `kvtide check`: the options of a server, without starting it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from kvtide.commands import Arguments, argument, command, exit_codes, flag, misused
from kvtide.doctor.asked import Asked, read_asked
from kvtide.doctor.wanted import ANY_GEOMETRY, node_note
from kvtide.errors import ConfigError
from kvtide.output import put
from kvtide.vllm.options import check_options, options_schema

EXIT_REFUSED = 1

TEXT = """\
Check the options of a vLLM server with kvtide, without starting it and without vLLM: everything that is wrong with
them, by the option's name. CONFIG is the JSON of --kv-transfer-config or only its kv_connector_extra_config, a file
with it, or "-" for standard input. Folders and files that it names are looked at; servers are not asked (doctor)."""

EXAMPLES = """\
  kvtide check '{"host": "64GiB"}'
  kvtide check kv-transfer-config.json --json
  kvtide check --schema > kvtide.schema.json     for editors""" + exit_codes(
    "a server would take it", "it would not", such_as="CONFIG is no JSON"
)


def run(args: Arguments) -> int:
    """Check the options, or print what there are."""
    if args.schema:
        if args.config is not None:
            raise misused("CONFIG is not looked at with --schema: leave one of them out")
        put(json.dumps(options_schema(), indent=2))
        return 0
    if args.config is None:
        raise ConfigError("CONFIG", None, "JSON, or a file with it")
    asked = read_asked(args.config, "CONFIG")
    errors = list(_errors(asked))
    if args.json:
        put(json.dumps({"ok": not errors, "errors": [_as_json(error) for error in errors]}))
    else:
        for error in errors:
            put(str(error))
        wrong = "1 option is wrong" if len(errors) == 1 else f"{len(errors)} options are wrong"
        put(f"a server would refuse it: {wrong}" if errors else "a server would take it")
        if not errors and (note := _note(asked)):
            put(note)
    return EXIT_REFUSED if errors else 0


def _errors(asked: Asked) -> Iterator[ConfigError]:
    yield from asked.problems
    options, errors = check_options(asked.extra)
    yield from errors
    if options is not None:
        try:
            options.build(ANY_GEOMETRY)
        except ConfigError as error:  # memory for no block, or more than this machine has
            yield error


def _note(asked: Asked) -> str:
    """Say what is no error and may be a surprise."""
    options, _ = check_options(asked.extra)
    return "" if options is None or options.node is None else node_note(options.node)


def _as_json(error: ConfigError) -> dict[str, object]:
    shown = error.value if isinstance(error.value, str | int | float | None) else repr(error.value)
    return {"option": error.option, "value": shown, "expected": error.expected}


COMMAND = command(
    "check",
    text=TEXT,
    examples=EXAMPLES,
    params=[
        argument("CONFIG"),
        flag("--schema", "print the JSON schema of all options"),
        flag("--json", "print one JSON object"),
    ],
    run=run,
)
