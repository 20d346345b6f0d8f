"""Read topics as tables with DuckDB, Polars and other engines that support pyarrow datasets. Columns and filters are
pushed down.

An engine requests a scanner of a dataset with the required columns and a filter expression. Only these columns are
decoded, and only offsets that can match are read (see `sparklog.engines.narrowing`). The scanner then applies the
filter to the records. If keys or values have a format, they are converted before a filter that uses them is applied,
and after any other filter. pyarrow's `Scanner` is not used, because it reads ahead in threads that call Python even
after the scan has ended.

Polars gets lazy frames, and passes its predicate as a Polars expression. Comparisons of columns with constants are
translated to pyarrow expressions. Other conditions do not reduce the number of records to read. The complete predicate
is then applied to the records.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from inspect import signature
from itertools import zip_longest
from typing import Any, NoReturn, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from sparklog.arguments import NAME, NAMES, checked
from sparklog.common.times import warn_of_seconds
from sparklog.engines.narrowing import Spans, columns_of, narrowed
from sparklog.errors import BadRequest, NotFound, did_you_mean
from sparklog.formats import ColumnFormats, Schemas
from sparklog.log.read.read_plan import check_isolation, read_parts
from sparklog.log.read.record_batches import stream_reader
from sparklog.log.read.table_plan import AsOf
from sparklog.log.read.topic_scan import check_threads
from sparklog.log.read.topic_table import TopicTable, open_table
from sparklog.log.state.record_schema import RECORD_SCHEMA
from sparklog.log.state.view import (
    COLUMNS,
    READ_COMMITTED,
    IsolationLevel,
    LogView,
    OffsetRange,
    check_columns,
)
from sparklog.log.topic.root import ROOT, Root, RootView, open_root
from sparklog.opening import open_view, resolve
from sparklog.storage.store import Store

T = TypeVar("T")
RootLike = Root | Store | str | os.PathLike[str]


class TopicScanner:
    """A scan of a dataset, with the interface of pyarrow's `Scanner`. The scan never reads ahead, so it can stop at any
    time.
    """

    def __init__(self, dataset: TopicDataset, columns: tuple[str, ...], expression: ds.Expression | None) -> None:
        self._dataset = dataset
        self._columns = columns
        self._expression = expression
        self.projected_schema = pa.schema([dataset.schema.field(name) for name in columns])
        self.schema = self.projected_schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches."""
        expression, dataset = self._expression, self._dataset
        needed = set() if expression is None else columns_of(expression, dataset.schema)
        read = [name for name in COLUMNS if name in needed or name in self._columns]
        for batch in dataset.batches(read, expression, needed):
            rows, has_decoded_filter = pa.Table.from_batches([batch]), dataset.decodes(needed)
            if expression is not None and not has_decoded_filter:
                # Values of records that do not match are not decoded, and may be invalid.
                rows = rows.filter(expression)
            rows = dataset.decode(rows)
            if expression is not None and has_decoded_filter:
                rows = rows.filter(expression)
            yield from rows.select(self._columns).to_batches()

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader of the rows. Records are read only when they are requested."""
        return stream_reader(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """Read all rows."""
        return pa.Table.from_batches(self.to_batches(), self.projected_schema)

    def count_rows(self) -> int:
        """Count the rows."""
        return sum(batch.num_rows for batch in self.to_batches())

    def head(self, num_rows: int) -> pa.Table:
        """Return the first rows."""
        batches: list[pa.RecordBatch] = []
        for batch in self.to_batches():
            batches.append(batch)
            if sum(rows.num_rows for rows in batches) >= num_rows:
                break
        return pa.Table.from_batches(batches, self.projected_schema).slice(0, num_rows)


class TopicDataset(ds.Dataset):  # type: ignore[misc]
    """A snapshot of a topic, which can be read by libraries that support pyarrow datasets. The snapshot is taken when
    the dataset is created.
    """

    def __init__(
        self, view: LogView, topic: str, isolation: IsolationLevel, threads: int, formats: ColumnFormats
    ) -> None:
        self._view = view
        self._topic = topic
        self._isolation = isolation
        self._threads = threads
        self._formats = formats
        self._schema = formats.schema(RECORD_SCHEMA)

    def __repr__(self) -> str:
        return f"TopicDataset({self._topic!r}, {self._view.location!r})"

    def __reduce__(self) -> NoReturn:
        raise BadRequest("a dataset of a topic cannot be pickled: open it in the process that reads it")

    @property
    def schema(self) -> pa.Schema:
        """The schema of the records."""
        return self._schema

    @property
    def partition_expression(self) -> ds.Expression:
        """A condition that is satisfied by all records. The condition is always True."""
        return pc.scalar(True)

    def get_fragments(self, filter: ds.Expression | None = None) -> Iterator[TopicDataset]:  # noqa: A002  (pyarrow's)
        """Yield the dataset itself, which has the fragment methods that engines use."""
        yield self

    def scanner(
        self,
        schema: pa.Schema | None = None,
        columns: Sequence[str] | None = None,
        filter: ds.Expression | None = None,  # noqa: A002  (pyarrow's)
        **_: Any,
    ) -> TopicScanner:
        """Return a scanner of the rows that match `filter`, projected to `columns`. Other options have no effect."""
        return TopicScanner(self, COLUMNS if columns is None else check_columns(list(columns)), filter)

    def batches(
        self, columns: Sequence[str], expression: ds.Expression | None, needed: set[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns of all records that may match an expression, before `decode`. `needed` contains the columns
        that are used in the expression.
        """
        read = self._formats.columns_to_read(columns)
        for ranges in _rounds(self.ranges(expression, needed)):
            yield from read_parts(self._view.plan(ranges, self._isolation), read, threads=self._threads)

    def decodes(self, columns: set[str]) -> bool:
        """Return True if one of these columns has a format."""
        return bool(self._formats.formats.keys() & columns)

    def decode(self, records: pa.Table) -> pa.Table:
        """Convert the keys and values of records to the types of their formats."""
        return self._formats.decode(records)

    def ranges(self, expression: ds.Expression | None, needed: set[str]) -> list[OffsetRange]:
        """Return the offset ranges to read for an expression, or None for all offsets."""
        bounds = self._view.bounds(self._topic)
        all_ranges = [
            OffsetRange(self._topic, partition, bound.log_start, bound.end(self._isolation))
            for partition, bound in sorted(bounds.items())
        ]
        if expression is None:
            return all_ranges
        spans = {log.partition: self._spans(log) for log in all_ranges if log.start < log.end}
        limits = {log.partition: log for log in all_ranges}
        return [
            replace(
                part, start=max(part.start, limits[part.partition].start), end=min(part.end, limits[part.partition].end)
            )
            for part in narrowed(self._topic, spans, expression, needed, self._schema)
        ]

    def _spans(self, offsets: OffsetRange) -> Spans:
        if isinstance(self._view, RootView):
            rows = self._view.snapshot(offsets.topic).slices.select(offsets.partition, offsets.start, offsets.end)
            return Spans(rows.base, rows.end, rows.min_ts, rows.max_ts)
        # The ranges of `stored` are estimates that may not contain all offsets, so the offsets are one span.
        return Spans(np.array([offsets.start], np.int64), np.array([offsets.end], np.int64))

    def _reject_method(self, *_: Any, **__: Any) -> NoReturn:
        raise BadRequest(
            "a dataset of a topic does not support this method: pass columns and a filter to to_table or to an engine"
        )

    filter = replace_schema = join = join_asof = sort_by = _reject_method


class ByTopic(dict[str, T]):
    """The opened topics by name. An unknown name raises `NotFound`, which is a `LookupError` and suggests a similar
    name.
    """

    def __missing__(self, name: str) -> T:
        hint = did_you_mean(str(name), self) or f"; the topics are {', '.join(map(repr, self)) or 'none'}"
        raise NotFound(f"topic {name!r} was not opened{hint}")


@checked(root=ROOT, topics=NAMES.or_none(), key_format=NAME.or_none(), value_format=NAME.or_none())
def datasets(
    root: RootLike,
    *,
    topics: Sequence[str] | None = None,
    isolation_level: IsolationLevel = READ_COMMITTED,
    threads: int = 1,
    key_format: str | None = None,
    key_schema: Schemas = None,
    value_format: str | None = None,
    value_schema: Schemas = None,
) -> dict[str, ds.Dataset]:
    """Open topics as pyarrow datasets. The datasets contain a consistent snapshot of the current state of all topics.

    Args:
        root: An open root, or the location of a root or a Kafka log directory.
        topics: The names of the topics, or None for all topics.
        isolation_level: The isolation level, as in `Topic.scan`.
        threads: The number of threads that decode records, as in `Topic.scan`.
        key_format: Format of the keys, one of `formats.FORMATS` except `json`. None returns bytes.
        key_schema: Schema of the keys, as in `formats.decode`. If it is a `SchemaRegistry`, keys are decoded to the
            latest schema of the subject `<topic>-key` when this function is called.
        value_format: Format of the values. Values of `avro`, `json-schema` and `protobuf` become a struct column.
        value_schema: Schema of the values, like `key_schema`. The subject is `<topic>-value`.

    Returns:
        A dataset for each topic. Call `to_table(columns=..., filter=...)` of the dataset, or pass the dataset to an
        engine, for example with `register_dataset` of DataFusion.

    Raises:
        NotFound: If the root or a topic does not exist.

    Example:
        import pyarrow.compute as pc

        orders = sparklog.datasets("/data/log")["orders"]
        print(orders.to_table(columns=["value"], filter=pc.field("offset") >= 1).num_rows)
    """
    check_isolation(isolation_level)
    check_threads(threads)
    view = _view(root)
    if topics is None:
        names = view.refresh_all()
    else:
        names = list(dict.fromkeys(topics))
        view.refresh(names)
    formats = {name: ColumnFormats.of_topic(name, key_format, key_schema, value_format, value_schema) for name in names}
    return ByTopic({name: TopicDataset(view, name, isolation_level, threads, formats[name]) for name in names})


@checked(root=ROOT, topics=NAMES.or_none(), key_format=NAME.or_none(), value_format=NAME.or_none())
def duckdb(
    con: Any,
    root: RootLike,
    *,
    topics: Sequence[str] | None = None,
    isolation_level: IsolationLevel = READ_COMMITTED,
    threads: int = 1,
    key_format: str | None = None,
    key_schema: Schemas = None,
    value_format: str | None = None,
    value_schema: Schemas = None,
) -> list[str]:
    """Register topics as views of a DuckDB connection. To see records that were appended since then, call this function
    again.

    Args:
        con: A connection, as returned by `duckdb.connect()`.
        root: An open root, or the location of a root or a Kafka log directory.
        topics: The names of the topics, or None for all topics.
        isolation_level: The isolation level, as in `Topic.scan`.
        threads: The number of threads that decode records, as in `Topic.scan`.
        key_format: Format of the keys, as in `sparklog.datasets`.
        key_schema: Schema of the keys.
        value_format: Format of the values.
        value_schema: Schema of the values.

    Returns:
        The names of the views, which are the names of the topics.

    Raises:
        NotFound: If the root or a topic does not exist.
        BadRequest: If `con` is not a connection.

    Example:
        import duckdb

        con = duckdb.connect()
        sparklog.duckdb(con, "/data/log", topics=["orders"])
        print(con.sql('SELECT key FROM orders WHERE partition = 0 AND "offset" >= 1'))
    """
    if not callable(getattr(con, "register", None)):
        raise BadRequest(
            f"con must be a DuckDB connection, as returned by duckdb.connect(), found {type(con).__name__}"
        )
    opened = datasets(
        root,
        topics=topics,
        isolation_level=isolation_level,
        threads=threads,
        key_format=key_format,
        key_schema=key_schema,
        value_format=value_format,
        value_schema=value_schema,
    )
    for name, dataset in opened.items():
        con.register(name, dataset)
    return list(opened)


@checked(root=ROOT, topic=NAME)
def table(
    root: RootLike, topic: str, *, as_of: AsOf = None, columns: Sequence[str] = COLUMNS, threads: int = 1
) -> TopicTable:
    """Plan a read of a topic as a table, with the latest committed record of each key and without deleted keys.

    As in compaction, a key has one row in each partition that contains records with this key. Records without a key
    are skipped.

    Args:
        root: An open root, or the location of a root or a Kafka log directory.
        topic: The name of the topic.
        as_of: The point in time to read. A timestamp, in milliseconds or as `2026-01-31T12:00:00` (in UTC unless it has
            an offset), selects the records before the first one with this timestamp or a later one. A mapping of
            partitions to offsets selects the records before these offsets, and all records of other partitions. None
            selects all records.
        columns: The columns to read, as in `Topic.scan`.
        threads: The number of threads that decode records.

    Returns:
        A `TopicTable`, which you can iterate over or pass to an Arrow library.

    Raises:
        NotFound: If the topic, a partition or an offset does not exist, or if records of the table have been deleted.
        BadRequest: If `as_of` is not a valid time.

    Example:
        customers = sparklog.table("/data/log", "orders", as_of={0: 1}, columns=["key", "value"])
        print(pa.table(customers).num_rows)
    """
    warn_of_seconds(as_of=as_of)
    return open_table(_view(root), topic, partial(_view, root, tailing=True), as_of, columns, threads)


def _view(root: RootLike, *, tailing: bool = False) -> LogView:
    if isinstance(root, Root):
        return RootView(root)
    if isinstance(root, Store):
        return RootView(open_root(root))
    return open_view(resolve(os.fspath(root)), tailing=tailing)


def _rounds(ranges: Sequence[OffsetRange]) -> Iterator[list[OffsetRange]]:
    """Yield the first range of each partition, then the second range of each partition, and so on.

    Ranges that are read together are not ordered, so a read must not contain two ranges of one partition.
    """
    by_partition: dict[int, list[OffsetRange]] = {}
    for offsets in ranges:
        by_partition.setdefault(offsets.partition, []).append(offsets)
    for ranges_of_round in zip_longest(*by_partition.values()):
        yield [offsets for offsets in ranges_of_round if offsets is not None]


INSTALL = 'pip install "polars>=1.33"'
COMPARISONS: tuple[Callable[[Any, Any], Any], ...] = (operator.eq, operator.ge, operator.gt, operator.le, operator.lt)


@checked(root=ROOT, topics=NAMES.or_none(), key_format=NAME.or_none(), value_format=NAME.or_none())
def polars(
    root: RootLike,
    *,
    topics: Sequence[str] | None = None,
    isolation_level: IsolationLevel = READ_COMMITTED,
    threads: int = 1,
    key_format: str | None = None,
    key_schema: Schemas = None,
    value_format: str | None = None,
    value_schema: Schemas = None,
) -> dict[str, Any]:
    """Open topics as Polars lazy frames. The frames contain a consistent snapshot of the current state of all topics.

    Args:
        root: An open root, or the location of a root or a Kafka log directory.
        topics: The names of the topics, or None for all topics.
        isolation_level: The isolation level, as in `Topic.scan`.
        threads: The number of threads that decode records, as in `Topic.scan`.
        key_format: Format of the keys, as in `sparklog.datasets`.
        key_schema: Schema of the keys.
        value_format: Format of the values.
        value_schema: Schema of the values.

    Returns:
        A `LazyFrame` for each topic, with the columns of a record.

    Raises:
        NotFound: If the root or a topic does not exist.
        BadRequest: If Polars is not installed, or is too old.

    Example:
        import polars as pl

        orders = sparklog.polars("/data/log")["orders"]
        print(orders.filter(pl.col("partition") == 0, pl.col("offset") >= 1).select("key").collect())
    """
    try:
        pl, plugins = import_module("polars"), import_module("polars.io.plugins")
    except ImportError:
        raise BadRequest(f"sparklog.polars requires Polars: {INSTALL}") from None
    if "is_pure" not in signature(plugins.register_io_source).parameters:
        raise BadRequest(f"sparklog.polars requires Polars 1.33 or newer, found {pl.__version__}: {INSTALL}")
    opened = datasets(
        root,
        topics=topics,
        isolation_level=isolation_level,
        threads=threads,
        key_format=key_format,
        key_schema=key_schema,
        value_format=value_format,
        value_schema=value_schema,
    )
    return ByTopic(
        {
            name: plugins.register_io_source(
                partial(_frames, dataset), schema=pl.DataFrame(dataset.schema.empty_table()).schema, is_pure=True
            )
            for name, dataset in opened.items()
        }
    )


def _frames(
    dataset: TopicDataset, with_columns: list[str] | None, predicate: Any, n_rows: int | None, _: int | None
) -> Iterator[Any]:
    """Yield frames with the requested columns of the matching rows among the first `n_rows` rows."""
    pl = import_module("polars")

    selected = list(COLUMNS) if with_columns is None else with_columns
    filtered = set() if predicate is None else set(predicate.meta.root_names())
    read = [name for name in COLUMNS if name in filtered or name in selected] or ["partition"]
    # Polars counts `n_rows` before it applies the predicate. If `n_rows` is given, rows must not be skipped.
    expression = translated(predicate) if predicate is not None and n_rows is None else None
    needed = set() if expression is None else columns_of(expression, dataset.schema)
    is_filtered_first = bool(filtered) and dataset.decodes(set(selected)) and not dataset.decodes(filtered)
    for batch in dataset.batches(read, expression, needed):
        if n_rows is not None:
            batch = batch.slice(0, n_rows)
            n_rows -= batch.num_rows
        if is_filtered_first:
            # Values of records that do not match are not decoded, and may be invalid.
            matches = pl.DataFrame(pa.Table.from_batches([batch])).select(predicate).to_series()
            batch = batch.filter(matches.to_arrow())
        frame = pl.DataFrame(dataset.decode(pa.Table.from_batches([batch])))
        if predicate is not None and not is_filtered_first:
            frame = frame.filter(predicate)
        yield frame.select(selected)
        if n_rows == 0:
            return


def translated(predicate: Any) -> ds.Expression | None:
    """Translate a Polars predicate to a pyarrow expression that is true for all matching rows. Return None if the
    predicate cannot be translated.
    """
    parts = predicate.meta.pop()[::-1]
    if len(parts) == 2:
        left, right = parts
        if _equals(predicate, lambda: left & right):
            sides = [side for side in (translated(left), translated(right)) if side is not None]
            return None if not sides else sides[0] if len(sides) == 1 else sides[0] & sides[1]
        if _equals(predicate, lambda: left | right):
            either = translated(left), translated(right)
            return None if either[0] is None or either[1] is None else either[0] | either[1]
        if _equals(predicate, lambda: left.is_in(right)):
            return _compared(left, right, lambda column, values: column.isin(_list_values(values)))
        for compare in COMPARISONS:
            if _equals(predicate, partial(compare, left, right)):
                return (
                    _compared(left, right, compare) if _is_column(left) else _compared(right, left, _swapped(compare))
                )
    if len(parts) == 3 and _equals(predicate, lambda: parts[0].is_between(parts[1], parts[2])):
        low, high = _compared(parts[0], parts[1], operator.ge), _compared(parts[0], parts[2], operator.le)
        return None if low is None or high is None else low & high
    return None


def _equals(predicate: Any, build: Callable[[], Any]) -> bool:
    return bool(predicate.meta.eq(build()))


def _is_column(part: Any) -> bool:
    return not part.meta.pop() and len(part.meta.root_names()) == 1


def _swapped(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda column, value: compare(pc.scalar(value), column)


def _compared(column: Any, literal: Any, compare: Callable[[Any, Any], Any]) -> ds.Expression | None:
    """Return the comparison of a column with a constant. Return None if the operands are not a column and a constant,
    or if their types differ.
    """
    pl = import_module("polars")

    if not _is_column(column) or literal.meta.root_names():
        return None
    (name,) = column.meta.root_names()
    try:
        values = pl.select(literal).to_series().to_arrow()
        return compare(pc.field(name), values[0]) if len(values) == 1 else None
    except (pa.ArrowException, pl.exceptions.PolarsError, TypeError):
        return None


def _list_values(values: Any) -> pa.Array:
    if not isinstance(values, pa.ListScalar):
        raise TypeError(f"expected a list, found {values.type}")
    return values.values
