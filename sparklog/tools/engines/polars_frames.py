"""Topics as lazy frames of Polars: columns, predicates and row limits come down to the log.

Polars hands a source its predicate as an expression. What compares columns with constants is translated to pyarrow's
expressions, by which offsets are chosen (`sparklog.tools.engines.narrowing`); the rest of it chooses nothing. Polars'
own predicate is applied to all that is read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from sparklog.errors import BadRequest
from sparklog.log.journal.arguments import NAMES, checked
from sparklog.log.state.record_schema import RECORD_SCHEMA
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, IsolationLevel
from sparklog.log.topic.root import ROOT
from sparklog.tools.engines.datasets import ByTopic, RootLike, TopicDataset, datasets
from sparklog.tools.engines.narrowing import columns_of

INSTALL = 'pip install "polars>=1.33"'
COMPARISONS: tuple[Callable[[Any, Any], Any], ...] = (operator.eq, operator.ge, operator.gt, operator.le, operator.lt)


@checked(root=ROOT, topics=NAMES.or_none())
def polars(
    root: RootLike,
    *,
    topics: Sequence[str] | None = None,
    isolation_level: IsolationLevel = READ_COMMITTED,
    threads: int = 1,
) -> dict[str, Any]:
    """Open topics as lazy frames of Polars: one consistent state of all, as of now.

    Args:
        root: an open root, or its place; a Kafka log directory, too.
        topics: names; None: all.
        isolation_level: as for `Topic.scan`.
        threads: as for `Topic.scan`.

    Returns:
        A `LazyFrame` by topic, with the columns of a record.

    Raises:
        NotFound: there is no root, or no such topic.
        BadRequest: Polars is not installed, or too old.

    Example:
        import polars as pl

        orders = sparklog.polars("/data/log")["orders"]
        print(orders.filter(pl.col("partition") == 0, pl.col("offset") >= 1).select("key").collect())
    """
    try:
        pl, plugins = import_module("polars"), import_module("polars.io.plugins")
    except ImportError:
        raise BadRequest(f"sparklog.polars needs Polars: {INSTALL}") from None
    if "is_pure" not in signature(plugins.register_io_source).parameters:
        raise BadRequest(f"sparklog.polars needs Polars 1.33 or newer, found {pl.__version__}: {INSTALL}")
    empty = pl.DataFrame(RECORD_SCHEMA.empty_table())
    opened = datasets(root, topics=topics, isolation_level=isolation_level, threads=threads)
    return ByTopic(
        {
            name: plugins.register_io_source(partial(_frames, dataset), schema=empty.schema, is_pure=True)
            for name, dataset in opened.items()
        }
    )


def _frames(
    dataset: TopicDataset, with_columns: list[str] | None, predicate: Any, n_rows: int | None, _: int | None
) -> Iterator[Any]:
    """Yield frames of the first `n_rows` rows, of these the columns of those that match."""
    pl = import_module("polars")

    wanted = list(COLUMNS) if with_columns is None else with_columns
    named = set() if predicate is None else set(predicate.meta.root_names())
    read = [name for name in COLUMNS if name in named or name in wanted] or ["partition"]
    # The rows are counted before the predicate: all of them are to be read then.
    expression = translated(predicate) if predicate is not None and n_rows is None else None
    needed = set() if expression is None else columns_of(expression)
    for batch in dataset.batches(read, expression, needed):
        frame = pl.DataFrame(pa.Table.from_batches([batch]))
        if n_rows is not None:
            frame = frame.head(n_rows)
            n_rows -= frame.height
        yield (frame if predicate is None else frame.filter(predicate)).select(wanted)
        if n_rows == 0:
            return


def translated(predicate: Any) -> ds.Expression | None:
    """Return an expression that is true of all rows of which the predicate is; None: nothing is known."""
    parts = predicate.meta.pop()[::-1]
    if len(parts) == 2:
        left, right = parts
        if _same(predicate, lambda: left & right):
            sides = [side for side in (translated(left), translated(right)) if side is not None]
            return None if not sides else sides[0] if len(sides) == 1 else sides[0] & sides[1]
        if _same(predicate, lambda: left | right):
            either = translated(left), translated(right)
            return None if either[0] is None or either[1] is None else either[0] | either[1]
        if _same(predicate, lambda: left.is_in(right)):
            return _compared(left, right, lambda column, values: column.isin(_flat(values)))
        for compare in COMPARISONS:
            if _same(predicate, partial(compare, left, right)):
                return _compared(left, right, compare) if _is_column(left) else _compared(right, left, _turned(compare))
    if len(parts) == 3 and _same(predicate, lambda: parts[0].is_between(parts[1], parts[2])):
        low, high = _compared(parts[0], parts[1], operator.ge), _compared(parts[0], parts[2], operator.le)
        return None if low is None or high is None else low & high
    return None


def _same(predicate: Any, made: Callable[[], Any]) -> bool:
    return bool(predicate.meta.eq(made()))


def _is_column(part: Any) -> bool:
    return not part.meta.pop() and len(part.meta.root_names()) == 1


def _turned(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda column, value: compare(pc.scalar(value), column)


def _compared(column: Any, literal: Any, compare: Callable[[Any, Any], Any]) -> ds.Expression | None:
    """Return the comparison of a column with a constant; None for what else is compared, or has another type."""
    pl = import_module("polars")

    if not _is_column(column) or literal.meta.root_names():
        return None
    (name,) = column.meta.root_names()
    try:
        values = pl.select(literal).to_series().to_arrow()
        return compare(pc.field(name), values[0]) if len(values) == 1 else None
    except (pa.ArrowException, pl.exceptions.PolarsError, TypeError):
        return None


def _flat(values: Any) -> pa.Array:
    """Return the values of a list."""
    if not isinstance(values, pa.ListScalar):
        raise TypeError(f"expected a list, found {values.type}")
    return values.values
