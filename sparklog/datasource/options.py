"""Options of a read or a write, parsed and checked once, in `DataSource.__init__`.

Whatever can be wrong in an option's text is found here, with one line that says what was expected, what was found and
what to do. What depends on the topics (partitions that exist, offsets in range) is checked by the planner; whether the
read is a batch or a stream is not known yet, so `check_batch_read` and `check_stream_read` say what only one of them
allows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import overload

from sparklog.datasource.offsets import EARLIEST, LATEST, parse_json, parse_partition, parse_partition_numbers
from sparklog.datasource.option_names import CODEC_LEVELS, READ, WRITE, canonical
from sparklog.errors import BadRequest, nearest
from sparklog.groups.group import MAX_SESSION_TIMEOUT_MS
from sparklog.log.decisions.decision_log import DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS
from sparklog.log.journal.names import check_id
from sparklog.log.state.config_table import SECURITY, is_security
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CORRUPT_RECORDS = ("fail", "skip", "truncate")
"""What damage in a Kafka directory does: see `sparklog.kafka.in_place.damage`, which option parsing does not import."""
DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60 * 1000
DEFAULT_METADATA_MAX_AGE_MS = 5 * 60 * 1000
DEFAULT_WRITE_BUFFER_BYTES = 64 << 20
MAX_WRITE_BUFFER_BYTES = 1 << 30
GROUP = "group"
"""`startingOffsets=group`: where the consumer group stands."""
RESETS = ("earliest", "latest", "none")
FOR_WRITES_TOO = (
    *("kafka.group.id", "kafka.group.instance.id", "kafka.session.timeout.ms"),
    *("kafka.isolation.level", "metadata.max.age.ms"),
)
"""Options of reads that a write has without effect: settings of Kafka's clients that are kept for both."""
DEFAULT_SESSION_TIMEOUT_MS = 300_000
"""A query shows that it lives whenever Spark plans, which a micro-batch holds up. So not `session.timeout.ms` of
Kafka's consumer, whose heartbeats go on meanwhile, but its `max.poll.interval.ms`."""

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class Subscription:
    """Which topics to read: exactly one of names, a pattern, or names with partitions."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True)
class Bound:
    """Where to start or end: `earliest`, `latest`, `group`, `offsets`, or `timestamp` (one or one each)."""

    kind: str
    option: str
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    timestamp: int | None = None
    timestamps: Mapping[str, Mapping[int, int]] | None = None

    def partitions(self) -> Mapping[str, Mapping[int, int]] | None:
        """The partitions that the user listed, if the bound is given one by one."""
        return self.offsets if self.kind == "offsets" else self.timestamps


@dataclass(frozen=True)
class ReadOptions:
    subscription: Subscription | None = None
    start: Bound | None = None
    end: Bound | None = None
    no_match_is_latest: bool = False
    fail_on_data_loss: bool = True
    corrupt_records: str = CORRUPT_RECORDS[0]
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    isolation: str = READ_COMMITTED
    group_id: str | None = None
    group_instance: str | None = None
    group_reset: str | None = None
    session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS
    max_bytes_per_trigger: int | None = None
    poll_interval_ms: int | None = None
    metadata_max_age_ms: int = DEFAULT_METADATA_MAX_AGE_MS


@dataclass(frozen=True)
class SinkOptions:
    topic: str | None = None
    codec: str | None = None
    level: int | None = None
    buffer_bytes: int = DEFAULT_WRITE_BUFFER_BYTES
    partitions: int = 1
    auto_create: bool = True
    txn_app_id: str | None = None
    txn_version: int | None = None
    replay_mismatch: str = "error"
    transaction_timeout_ms: int = DEFAULT_TIMEOUT_MS


@dataclass(frozen=True)
class Options:
    """All options of one `load` or `save`. `given` holds the names the user gave, in their own spelling.

    `warnings`: what a user should know of options that are accepted without effect, a line each.
    """

    path: str | None
    read: ReadOptions
    write: SinkOptions
    given: frozenset[str]
    warnings: tuple[str, ...] = ()

    def check_read(self) -> None:
        """Raises BadRequest for options that only a write has."""
        wrong = sorted(self.given & set(WRITE))
        if wrong:
            hint = "; name the topics to read with 'subscribe'" if wrong[0] == "topic" else ""
            raise BadRequest(f"Option '{wrong[0]}' is for writing{hint}: remove it from this read")

    def check_write(self) -> None:
        """Raises BadRequest for options that only a read has."""
        wrong = sorted(self.given & set(READ) - set(FOR_WRITES_TOO))
        if wrong:
            hint = "; name the topic to write with 'topic'" if wrong[0] in ("subscribe", "assign") else ""
            raise BadRequest(f"Option '{wrong[0]}' is for reading{hint}: remove it from this write")

    def check_batch_write(self) -> None:
        """Raises BadRequest for what only a stream may leave out: called before a topic is made."""
        if self.write.txn_app_id is not None and self.write.txn_version is None:
            raise BadRequest("txnAppId is given without txnVersion: give both, or neither")

    def check_stream_write(self) -> None:
        """Raises BadRequest for options that a stream cannot have: called before a topic is made."""
        if self.write.txn_version is not None:
            raise BadRequest("txnVersion is for batch writes: a stream's batch id is its version; leave it out")

    def check_batch_read(self) -> None:
        """Raises BadRequest for bounds that a batch cannot have."""
        start, end = self.read.start, self.read.end
        if start is not None:
            if start.kind == "latest":
                raise BadRequest("startingOffsets=latest is for streams: a batch that starts at the end reads nothing")
            _refuse(start, LATEST, "latest (-1) is for streams; give the offset to start at, or -2 for earliest")
        if end is not None:
            if end.kind == "earliest":
                raise BadRequest(
                    "endingOffsets must be 'latest' or offsets; a read that ends at 'earliest' reads nothing"
                )
            _refuse(end, EARLIEST, "earliest (-2) cannot be an end; give an offset, or -1 for latest")

    def check_stream_read(self) -> None:
        """Raises BadRequest for options that a stream cannot have."""
        if self.read.end is not None:
            raise BadRequest(f"Option '{self.read.end.option}' is for batch reads: a stream has no end; remove it")


def _refuse(bound: Bound, value: int, why: str) -> None:
    for topic, offsets in bound.offsets.items():
        for partition, offset in offsets.items():
            if offset == value:
                raise BadRequest(f"{bound.option}: {topic}-{partition}: {why}")


def parse_options(given: Mapping[str, str]) -> Options:
    """Parse and check all options. Raises BadRequest, one line, for the first thing that is wrong."""
    values: dict[str, str] = {}
    for name, value in given.items():
        option = canonical(name)
        own = option is not None and option.lower() == name.lower()
        if option is not None and (own or option not in values):
            values[option] = value
    return Options(
        path=_path(values.get("path")),
        read=_read_options(values),
        write=_sink_options(values),
        given=frozenset(values),
        warnings=_warnings(given, values),
    )


def _warnings(given: Mapping[str, str], values: Mapping[str, str]) -> tuple[str, ...]:
    """What to say of bounds that others hide, and of the security of brokers."""
    found = []
    for side in ("starting", "ending"):
        names = _bound_names(values, side)
        if len(names) > 1:
            hidden = " and ".join(map(repr, names[1:]))
            found.append(
                f"Option '{names[0]}' counts and hides {hidden}, as for Spark's Kafka connector: give one of them"
            )
    secure = sorted(name for name in given if is_security(name))
    if secure:
        have = "has" if len(secure) == 1 else "have"
        found.append(f"{', '.join(secure)} {have} no effect: {SECURITY}")
    return tuple(found)


def _path(value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise BadRequest("path is empty: give the root, topic folder or Kafka log directory")
    return value


def _read_options(values: Mapping[str, str]) -> ReadOptions:
    start = _bound(values, "starting")
    group = values.get("kafka.group.id")
    _check_group(values, start)
    return ReadOptions(
        subscription=_subscription(values),
        start=start,
        end=_bound(values, "ending"),
        no_match_is_latest=_choice(values, "startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        == "latest",
        fail_on_data_loss=_boolean(values, "failOnDataLoss", True),
        corrupt_records=_choice(values, "corruptRecords", CORRUPT_RECORDS, CORRUPT_RECORDS[0]),
        min_partitions=_number(values, "minPartitions", 1),
        max_records_per_partition=_number(values, "maxRecordsPerPartition", 1),
        include_headers=_boolean(values, "includeHeaders", False),
        isolation=_choice(values, "kafka.isolation.level", (READ_COMMITTED, READ_UNCOMMITTED), READ_COMMITTED),
        group_id=None if group is None else check_id(group, "kafka.group.id"),
        group_instance=values.get("kafka.group.instance.id"),
        group_reset=_choice(values, "kafka.auto.offset.reset", RESETS, "") or None,
        session_timeout_ms=_at_most(
            values, "kafka.session.timeout.ms", DEFAULT_SESSION_TIMEOUT_MS, MAX_SESSION_TIMEOUT_MS
        ),
        max_offsets_per_trigger=_number(values, "maxOffsetsPerTrigger", 1),
        min_offsets_per_trigger=_min_offsets(values),
        max_trigger_delay_ms=_duration(values, "maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
        max_bytes_per_trigger=_number(values, "maxBytesPerTrigger", 1),
        poll_interval_ms=_number(values, "poll.interval.ms", 0),
        metadata_max_age_ms=_number(values, "metadata.max.age.ms", 0, DEFAULT_METADATA_MAX_AGE_MS),
    )


def _check_group(values: Mapping[str, str], start: Bound | None) -> None:
    """Raises BadRequest for a group that is asked where to start and not named, or named and not asked."""
    if start is not None and start.kind == GROUP:
        if "kafka.group.id" not in values:
            raise BadRequest("startingOffsets=group needs the name of a consumer group: give kafka.group.id")
    elif "kafka.auto.offset.reset" in values:
        raise BadRequest(
            "Option 'kafka.auto.offset.reset' goes with startingOffsets=group only: use startingOffsets=earliest or "
            "latest"
        )
    instance = values.get("kafka.group.instance.id")
    if instance is not None:
        check_id(instance, "kafka.group.instance.id")


def _sink_options(values: Mapping[str, str]) -> SinkOptions:
    app, version = values.get("txnAppId"), _number(values, "txnVersion", 0)
    if version is not None and app is None:
        raise BadRequest("txnVersion is given without txnAppId: give both, or neither")
    if app is not None and not app.strip():
        raise BadRequest("txnAppId is empty: give the name of the application that writes, the same in every run")
    codec = None
    if "compression.type" in values:
        codec = _choice(values, "compression.type", CODECS, "")
    level = _number(values, "compression.level", -(1 << 17))
    for name, of_codec in CODEC_LEVELS.items():
        if level is None and of_codec == (codec or "zstd"):
            level = _number(values, name, -(1 << 17))
    buffer_bytes = _number(values, "write.buffer.bytes", 1, DEFAULT_WRITE_BUFFER_BYTES)
    if buffer_bytes > MAX_WRITE_BUFFER_BYTES:
        raise BadRequest(f"Option 'write.buffer.bytes' must be at most {MAX_WRITE_BUFFER_BYTES}; found {buffer_bytes}")
    return SinkOptions(
        topic=_topic(values.get("topic")),
        codec=codec,
        level=level,
        buffer_bytes=buffer_bytes,
        partitions=_number(values, "num.partitions", 1, 1),
        auto_create=_boolean(values, "auto.create.topics.enable", True),
        txn_app_id=app,
        txn_version=version,
        replay_mismatch=_choice(values, "replayMismatch", ("error", "accept"), "error"),
        transaction_timeout_ms=_at_most(values, "transaction.timeout.ms", DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS),
    )


def _at_most(values: Mapping[str, str], name: str, default: int, most: int) -> int:
    """A time in ms of at most `most`, which is a day. What Kafka's clients take its broker limits, too."""
    found = _number(values, name, 1, default)
    if found > most:
        raise BadRequest(f"Option '{name}' must be at most {most} (a day); found {found}")
    return found


def _topic(value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise BadRequest("Option 'topic' is empty: name the topic to write")
    return value


def _min_offsets(values: Mapping[str, str]) -> int | None:
    least, most = _number(values, "minOffsetsPerTrigger", 1), _number(values, "maxOffsetsPerTrigger", 1)
    if least is not None and most is not None and least > most:
        raise BadRequest(f"minOffsetsPerTrigger ({least}) must not be greater than maxOffsetsPerTrigger ({most})")
    return least


def _subscription(values: Mapping[str, str]) -> Subscription | None:
    forms = [name for name in ("subscribe", "subscribePattern", "assign") if name in values]
    if not forms:
        return None
    if len(forms) > 1:
        raise BadRequest(
            f"Give one of 'subscribe', 'subscribePattern' and 'assign', not {' and '.join(map(repr, forms))}"
        )
    text = values[forms[0]]
    if forms[0] == "subscribe":
        topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not topics:
            raise BadRequest("Option 'subscribe' must name topics, separated by commas; it is empty")
        return Subscription(topics=topics)
    if forms[0] == "subscribePattern":
        return Subscription(pattern=_pattern(text))
    return _assignment(text)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise BadRequest(f"Option 'subscribePattern' is not a regular expression: {text!r}: {error}") from None
    if not text.strip():
        raise BadRequest("Option 'subscribePattern' is empty: give a regular expression that matches whole topic names")
    return text


def _assignment(text: str) -> Subscription:
    try:
        document = parse_json(text)
        if not isinstance(document, dict) or not document:
            raise ValueError(f"found {text}")
        partitions: dict[str, tuple[int, ...]] = {}
        for topic, numbers in document.items():
            if not isinstance(numbers, list) or not numbers:
                raise ValueError(f"topic {topic!r} must have a list of partitions, found {numbers!r}")
            partitions[topic] = tuple(sorted({parse_partition(topic, number) for number in numbers}))
    except ValueError as error:
        raise BadRequest(f"Option 'assign' must be JSON like {{\"topic\":[0,1]}}: {error}") from None
    return Subscription(topics=tuple(partitions), partitions=partitions)


def _bound(values: Mapping[str, str], side: str) -> Bound | None:
    """The first of `startingTimestamp`, `startingOffsetsByTimestamp` and `startingOffsets` that is given (and the same
    for `ending`): the connector's order. The others are not looked at.
    """
    names = _bound_names(values, side)
    if not names:
        return None
    name, text = names[0], values[names[0]].strip()
    if name == f"{side}Timestamp":
        return Bound("timestamp", name, timestamp=_number(values, name, 0))
    if name == f"{side}OffsetsByTimestamp":
        return Bound("timestamp", name, timestamps=_per_partition(name, text, "timestamp", 0))
    if text.lower() in _words(side):
        return Bound(text.lower(), name)
    return Bound("offsets", name, offsets=_per_partition(name, text, "offset", EARLIEST, _words(side)))


def _bound_names(values: Mapping[str, str], side: str) -> list[str]:
    """The options given for one side, the one that counts first."""
    return [name for name in (f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets") if name in values]


def _words(side: str) -> tuple[str, ...]:
    return ("earliest", "latest", GROUP) if side == "starting" else ("earliest", "latest")


def _per_partition(
    name: str, text: str, what: str, lowest: int, words: tuple[str, ...] = ()
) -> dict[str, dict[int, int]]:
    listed = ", ".join(map(repr, words)) + " or " if words else ""
    try:
        if words and not text.startswith("{"):
            raise ValueError(f"found {text!r}{_did_you_mean(text, words)}")
        numbers = parse_partition_numbers(parse_json(text), what, lowest=lowest)
        if not any(numbers.values()):
            raise ValueError("it names no partition")
    except ValueError as error:
        raise BadRequest(f'Option \'{name}\' must be {listed}JSON like {{"topic":{{"0":23}}}}: {error}') from None
    return numbers


def _did_you_mean(text: str, choices: tuple[str, ...]) -> str:
    near = nearest(text.lower(), choices, limit=1)
    return f". Did you mean {near[0]!r}?" if near else ""


def _choice(values: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    if name not in values:
        return default
    text = values[name].strip().lower()
    if text not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise BadRequest(
            f"Option '{name}' must be one of {listed}; found {values[name]!r}{_did_you_mean(text, choices)}"
        )
    return text


def _boolean(values: Mapping[str, str], name: str, default: bool) -> bool:
    return _choice(values, name, ("true", "false"), str(default).lower()) == "true"


@overload
def _number(values: Mapping[str, str], name: str, lowest: int) -> int | None: ...


@overload
def _number(values: Mapping[str, str], name: str, lowest: int, default: int) -> int: ...


def _number(values: Mapping[str, str], name: str, lowest: int, default: int | None = None) -> int | None:
    if name not in values:
        return default
    text = values[name].strip()
    if re.fullmatch(r"[+-]?\d{1,19}", text, re.ASCII) is None or not lowest <= int(text) < 1 << 63:
        kind = "a whole number" if lowest < 0 else f"a whole number >= {lowest}"
        raise BadRequest(f"Option '{name}' must be {kind}; found {values[name]!r}")
    return int(text)


def _duration(values: Mapping[str, str], name: str, default: int) -> int:
    """Milliseconds from Spark's time strings: `15m`, `90s`, `500ms`; a bare number is milliseconds."""
    if name not in values:
        return default
    found = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", values[name].strip().lower())
    if found is None or (found[2] or "ms") not in _UNITS_MS:
        raise BadRequest(f"Option '{name}' must be a time like '15m', '90s' or '500ms'; found {values[name]!r}")
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]
