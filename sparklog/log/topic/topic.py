"""A topic of a root for users: `root.topic(name)`. Other packages use `topic.log`, which is a `TopicLog`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from sparklog.arguments import CONFIGS, NUMBER, NUMBERS, OFFSETS, checked, instance
from sparklog.errors import BadRequest, NotFound
from sparklog.log.decisions.decision_log import consistent_ends
from sparklog.log.journal.clocks import Env
from sparklog.log.read.counting import RecordCount, count_of
from sparklog.log.read.read_plan import bounds_of
from sparklog.log.read.topic_reader import TopicReader
from sparklog.log.state.commit_intents import AlterIntent, DeleteIntent, LogStartIntent, Nothing
from sparklog.log.state.configs import check_delete_delay
from sparklog.log.state.description import TopicDescription, describe
from sparklog.log.state.kafka_source import KafkaOpen
from sparklog.log.state.topic_state import TopicState
from sparklog.log.state.view import READ_COMMITTED, IsolationLevel, LogView
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.engine import RootEngine, TopicLog
from sparklog.log.topic.expiring import warn_of_short_retention
from sparklog.log.write.append_target import AppendOutcome, WriteOptions
from sparklog.storage.store import Store

if TYPE_CHECKING:
    from sparklog.log.write.arrow_data import ArrowData

WRITE_OPTIONS = instance("WriteOptions", WriteOptions).or_none()
TOPIC_STATE = instance("a TopicState, as alter returns it", TopicState).or_none()
WRITER = instance("a WriterKey", WriterKey).or_none()


class RootContext(Protocol):
    """The attributes of a `Root` that topics and maintenance use."""

    store: Store
    env: Env
    engine: RootEngine

    @property
    def location(self) -> str: ...
    def _topic(self, name: str) -> Any: ...


class Topic(TopicReader):
    """A topic of a root: `root.topic(name)`. It is a `TopicReader` whose methods read the latest version.

    Example:
        topic = sparklog.open("/data/log").topic("orders")
        topic.append(pa.table({"key": ["anna", "carl"], "value": ["book", "sofa"]}))
        print(topic.scan(columns=["key", "value"]).to_table().num_rows)
    """

    def __init__(self, root: RootContext, log: TopicLog, open_view: Callable[[], LogView]) -> None:
        super().__init__(log.topic, open_view, open_view)
        self.root = root
        self.store = root.store
        self.log = log

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, {self.root.location!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return self.root._topic, (self.name,)

    def describe(self) -> TopicDescription:
        """Describe the topic.

        Returns:
            The partitions, configs with their sources, sizes and open transactions.

        Raises:
            NotFound: the topic was deleted.
        """
        return describe(self.log.read_snapshot(), self.log.engine.defaults.read(latest=True))

    # -- changing the topic

    @checked(configs=CONFIGS.or_none(), partitions=NUMBER.or_none(), since=TOPIC_STATE)
    def alter(
        self,
        *,
        configs: Mapping[str, object | None] | None = None,
        partitions: int | None = None,
        force: bool = False,
        since: TopicState | None = None,
    ) -> TopicState:
        """Set configs and add partitions.

        Args:
            configs: values by config name; None resets a config to its default.
            partitions: the new number of partitions, at least the current number.
            force: allow a `file.delete.delay.ms` below one hour, and `compact` if there are records without keys.
            since: the state on which the change is based; the default is the latest state.

        Returns:
            The state after the change.

        Raises:
            Conflict: another process has changed the same config, or the partitions, after `since`.
            BadRequest: a name or value is invalid, partitions would be removed, or `force` is required.

        Example:
            topic.alter(configs={"retention.ms": 86_400_000}, partitions=8)
        """
        state = self.log.state()
        return self.log.commit(self._alteration(state, configs, partitions, force), since or state).state

    @checked(configs=CONFIGS.or_none(), partitions=NUMBER.or_none())
    def plan_alter(
        self, *, configs: Mapping[str, object | None] | None = None, partitions: int | None = None, force: bool = False
    ) -> dict[str, str | None]:
        """Check an `alter` without changing anything.

        Args:
            configs: as for `alter`.
            partitions: as for `alter`.
            force: as for `alter`.

        Returns:
            The configs that `alter` would change, by name. None means that the config is reset to its default.

        Raises:
            SparklogError: the errors of `alter`.
        """
        snapshot = self.log.snapshot()
        state = snapshot.state
        draft = self._alteration(state, configs, partitions, force).draft(self.name, state, state, snapshot.slices)
        return {} if isinstance(draft, Nothing) else dict(draft.configs)

    def _alteration(
        self, state: TopicState, configs: Mapping[str, object | None] | None, partitions: int | None, force: bool
    ) -> AlterIntent:
        changes = dict(configs or {})
        state.configs.changed(changes)
        check_delete_delay(changes, force)
        warn_of_short_retention(f"topic {self.name}", changes)
        return AlterIntent(state.topic_id, changes, partitions, drop_keyless=force)

    @checked(before=OFFSETS)
    def delete_records(self, before: Mapping[int, int]) -> Mapping[int, int]:
        """Delete the records below an offset in each partition.

        Args:
            before: the first offset to keep, by partition. The offset -1 deletes all records of the partition.

        Returns:
            The new log start offset of each partition, which is Kafka's low watermark.

        Raises:
            NotFound: an offset is beyond the log end, or a partition does not exist.
            BadRequest: the `cleanup.policy` does not include `delete`, as in Kafka.

        Example:
            topic.delete_records({0: 1})
        """
        state = self.log.state()
        intent = self._new_log_starts(state, before)
        after = self.log.commit(intent, state).state
        # If this process stalled before the commit was found, the topic may have been deleted in the meantime.
        starts = after.log_start if after.topic_id == state.topic_id and after.exists else state.log_start
        return {partition: max(offset, int(starts[partition])) for partition, offset in intent.log_starts.items()}

    @checked(before=OFFSETS)
    def plan_delete_records(self, before: Mapping[int, int]) -> Mapping[int, int]:
        """Check a `delete_records` without changing anything.

        Args:
            before: as for `delete_records`.

        Returns:
            The log start offset that each partition would have.

        Raises:
            SparklogError: the errors of `delete_records`.
        """
        state = self.log.state()
        intent = self._new_log_starts(state, before)
        intent.draft(self.name, state, state, None)
        return {p: max(offset, int(state.log_start[p])) for p, offset in intent.log_starts.items()}

    def _new_log_starts(self, state: TopicState, before: Mapping[int, int]) -> LogStartIntent:
        configs = self.log.read_configs()
        if not configs.is_deleting:
            raise BadRequest(
                f"records of topic '{self.name}' cannot be deleted, because its cleanup.policy is "
                f"'{','.join(configs.cleanup_policy)}'; add delete to the policy"
            )
        for partition in before:
            if not 0 <= partition < state.partitions:
                raise NotFound(
                    f"topic '{self.name}' has partitions 0 to {state.partitions - 1}, found partition {partition!r}"
                )
        log_starts = {p: int(state.log_end[p]) if offset == -1 else offset for p, offset in before.items()}
        return LogStartIntent(state.topic_id, log_starts)

    @checked(version=NUMBER.or_none())
    def delete(self, *, version: int | None = None) -> None:
        """Delete the topic. `retain` deletes its files later.

        Args:
            version: delete the topic only if this is its latest version.

        Raises:
            NotFound: the topic was already deleted.
            Conflict: the topic has a later version.
        """
        state = self.log.state()
        self.log.commit(DeleteIntent(state.topic_id, version), state)

    # -- records

    @checked(options=WRITE_OPTIONS, writer=WRITER)
    def append(
        self, data: ArrowData, *, options: WriteOptions | None = None, writer: WriterKey | None = None
    ) -> AppendOutcome:
        """Append rows in one commit, so that readers see either all rows or none.

        Args:
            data: an object with `__arrow_c_stream__` or `__arrow_c_array__` (a table, record batch or scan, a Polars or
                pandas data frame, a DuckDB relation), an iterable of such objects, a dictionary of columns, or an
                iterable of dictionaries, one per row. Columns: `value` and optionally `key` (binary or string),
                `headers` (list<struct<key: string, value: binary>>; in Python, pairs or a dictionary), `timestamp` (any
                timestamp type, or int64 ms; null: now), and `partition` (null: chosen by the key).
            options: codec and sizes.
            writer: id and number of a batch; a batch that was appended before is skipped.

        Returns:
            The version, and the first and next offset of each partition that received records.

        Raises:
            BadRequest: the topic rejects a row. In this case, no rows are published.
            Fenced: another run of the writer took over.
            NotFound: the topic was deleted.

        Example:
            outcome = topic.append(pa.table({"value": ["lamp", "desk"]}), options=WriteOptions(codec="lz4"))
            print(outcome.version)
        """
        # Processes that only read or plan do not need the encoder.
        from sparklog.log.topic.appending import append_rows

        return append_rows(self.log, data, options, writer)

    @checked()
    def count(self, *, isolation_level: IsolationLevel = READ_COMMITTED) -> RecordCount:
        """Count the records of a scan from metadata only.

        Args:
            isolation_level: as for `scan`.

        Returns:
            The count, with `records`, `is_exact`, `earliest_ms` and `latest_ms` in total and by partition. If
            `is_exact` is False, `records` is an upper bound.

        Raises:
            NotFound: the topic was deleted.
        """
        snapshot = self.log.read_snapshot()
        bounds = bounds_of(snapshot, consistent_ends({self.name: snapshot})[self.name])
        return count_of(snapshot, bounds, isolation_level)

    @checked(producers=NUMBERS.or_none())
    def end_kafka_transactions(
        self, *, producers: Collection[int] | None = None, commit: bool = False
    ) -> tuple[KafkaOpen, ...]:
        """End transactions that Kafka left open in imported partitions.

        Args:
            producers: ids of the producers whose transactions to end, or None for all producers.
            commit: if True, end the transactions with COMMIT markers instead of ABORT markers.

        Returns:
            The transactions that were ended.

        Raises:
            NotFound: the topic was deleted.
            Conflict: other processes keep changing the open transactions.
        """
        from sparklog.log.write.kafka_markers import end_kafka_transactions

        return end_kafka_transactions(self.log, producers=producers, commit=commit)
