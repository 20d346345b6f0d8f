"""Tables on stdout: aligned columns, as wide as they are where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

from sparklog.cli.terminal import printable


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, right: Collection[str] = ()) -> None:
    """Print the rows below their headings, without lines; columns named in `right` are aligned to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(printable, row))
    # A pipe has no width: the table must not be cut to 80 columns there.
    width = None if sys.stdout.isatty() else 1000
    Console(highlight=False, markup=False, emoji=False, width=width).print(table)
