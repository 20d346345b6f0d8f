"""The options that say how records are printed, and the printing: what `consume`, `get` and `table` share."""

# Without `annotations` of the future: see `sparklog.cli.options`.
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from click import BadParameter

from sparklog.cli.options import unescaped, whole_number
from sparklog.cli.parameters import Option
from sparklog.cli.record_values import RecordValues
from sparklog.output import write

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.cli.record_text import Layout

Formatter = Callable[["pa.RecordBatch"], bytes]
FORMAT_HELP = r"Instead of columns, as kcat's -f: %t %p %o %T %h %k %K %s %S, then \n if wanted; null is nothing."
LimitOption = Annotated[int | None, whole_number("--max-messages", "-n", text="End after so many.")]


@dataclass
class Columns:
    """Columns of a record to print, under the names of Kafka's console consumer."""

    print_timestamp: Annotated[bool, Option(help="CreateTime:<ms>")] = False
    print_partition: Annotated[bool, Option(help="Partition:<n>")] = False
    print_offset: Annotated[bool, Option(help="Offset:<n>")] = False
    print_headers: Annotated[bool, Option(help="name:value,... or NO_HEADERS")] = False
    print_key: Annotated[bool, Option(help="The key.")] = False

    def layout(self, value: bool) -> "Layout":
        from sparklog.cli.record_text import Layout

        shown = (self.print_timestamp, self.print_partition, self.print_offset, self.print_headers, self.print_key)
        return Layout(*shown, value)


@dataclass
class Printing(Columns):
    """Columns, and what is between them; or a format."""

    print_value: Annotated[bool, Option(help="The value.")] = True
    key_separator: Annotated[str, Option(help=r"Between columns; \0 and \x1f are escapes.", show_default="a tab")] = (
        "\t"
    )
    line_separator: Annotated[str, Option(help="After each record.", show_default="a new line")] = "\n"
    headers_separator: Annotated[str, Option(help="Between headers.")] = ","
    null_literal: Annotated[str | None, Option(help="Stands for a null key or value.", show_default="null")] = None
    format_: Annotated[str | None, Option("--format", metavar="TEXT", help=FORMAT_HELP)] = None

    def formatter(self, values: RecordValues, as_json: bool) -> tuple[tuple[str, ...], Formatter]:
        """Return the columns to read, and the function that makes bytes of them."""
        from sparklog.cli.record_text import format_json, parse_format
        from sparklog.log.state.view import COLUMNS

        if as_json:
            if self.format_ is not None:
                raise BadParameter("give one of --format and --json")
            return COLUMNS, lambda batch: format_json(batch, values)
        null = None if self.null_literal is None else unescaped(self.null_literal)
        if self.format_ is not None:
            parsed = parse_format(self.format_, null or b"")
            return values.columns(parsed.columns()), lambda batch: parsed.format(batch, values.show(batch))
        layout = replace(
            self.layout(self.print_value),
            key_separator=unescaped(self.key_separator),
            line_separator=unescaped(self.line_separator),
            headers_separator=unescaped(self.headers_separator),
        )
        layout = layout if null is None else replace(layout, null_literal=null)
        return values.columns(layout.columns()), lambda batch: layout.format(values.show(batch))


class Printer:
    """Prints records, at most `limit`, and says at the end how many, also at an interrupt."""

    def __init__(self, formatter: Formatter, limit: int | None) -> None:
        self._formatter = formatter
        self._limit = limit
        self.count = 0

    def __enter__(self) -> "Printer":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: Any) -> None:
        if error is None:
            print(f"Processed a total of {self.count} messages", file=sys.stderr)
        elif isinstance(error, KeyboardInterrupt):
            error.args = (f"processed a total of {self.count} messages",)

    def left(self) -> int | None:
        """Return how many may still be printed; None: any number."""
        return None if self._limit is None else self._limit - self.count

    def print(self, batches: Iterator["pa.RecordBatch"]) -> None:
        while self.left() != 0 and (batch := next(batches, None)) is not None:
            part = batch.slice(0, self.left())
            data = self._formatter(part)
            # Before they are written: an interrupt may come as soon as a reader sees them.
            self.count += part.num_rows
            write(data)
