"""Writing for people: results to stdout, what is beside them to stderr, tables where they fit."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_NO_LIMIT = 10_000


class Output(Console):
    """Stdout. That nobody reads it any more (| head) is told to who writes; rich would end the process with code 1."""

    def on_broken_pipe(self) -> None:
        """Raise it once more."""
        raise BrokenPipeError

    def table(self, table: Table) -> None:
        """Print a table, or a list of what is in it where it is wider than the screen."""
        if Measurement.get(self, self.options.update(max_width=_NO_LIMIT), table).maximum <= self.width:
            self.print(table)
            return
        if table.title:
            self.print(_text(table.title), soft_wrap=not self.is_terminal)
        headers = [" ".join(_text(column.header).plain.split()) for column in table.columns]
        for row in zip(*(column.cells for column in table.columns), strict=True):
            first, *cells = (_text(cell) for cell in row)
            self.print(Text(headers[0] + ": " if headers[0] else "").append_text(first))
            for header, cell in zip(headers[1:], cells, strict=True):
                if cell.plain:
                    self.print(Text(f"  {header}: " if header else "  ").append_text(cell))


def _text(cell: object) -> Text:
    return cell if isinstance(cell, Text) else Text.from_markup(str(cell))


def put(text: str) -> None:
    """Print a result."""
    sys.stdout.write(f"{text}\n")


def tell(text: str) -> None:
    """Say something that is not a result."""
    sys.stderr.write(f"{text}\n")
