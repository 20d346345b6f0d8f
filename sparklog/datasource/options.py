"""The options of a read or a write. `DataSource.__init__` parses and checks them according to `option_table`.

The planner performs the checks that depend on topics, such as whether a partition exists or an offset is in range. When
options are parsed, it is not known whether a read is a batch or a stream. `check_batch_read` and `check_stream_read`
reject the options of the other kind of read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sparklog.common.settings import TEXT, Setting, by_name
from sparklog.common.times import parse_iso_time, seconds_warning
from sparklog.datasource.offsets import EARLIEST, LATEST, parse_json, parse_partition, parse_partition_numbers
from sparklog.datasource.option_table import (
    CLIENT_OPTIONS,
    FORMATS_WITH_SCHEMA,
    LEVELS,
    OPTIONS,
    STREAM,
    TIMESTAMP,
    TOPIC_CONFIG,
    WRITE,
    find_option,
)
from sparklog.datasource.schema import listed_columns
from sparklog.errors import BadRequest, did_you_mean
from sparklog.format.text import parse_keys
from sparklog.log.journal.names import check_id
from sparklog.log.state.configs import SECURITY, canonical, is_security
from sparklog.storage.cloud_settings import is_setting
from sparklog.storage.locations import with_settings

if TYPE_CHECKING:
    from sparklog.format.record_batch import Codec
    from sparklog.kafka.in_place.segment_recovery import CorruptRecords
    from sparklog.log.read.key_lookup import KeySet

GROUP = "group"
"""The value of `startingOffsets` that starts a read at the committed offsets of the consumer group."""
_BY_NAME = by_name(OPTIONS)


@dataclass(frozen=True)
class Subscription:
    """The topics to read, which are specified by names, by a pattern, or by partitions."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True)
class Bound:
    """A start or end: `earliest`, `latest`, `group`, `offsets`, or `timestamp` (a single timestamp or one per
    partition).
    """

    kind: str
    option: str
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    timestamp: int | None = None
    timestamps: Mapping[str, Mapping[int, int]] | None = None


@dataclass(frozen=True)
class ColumnFormat:
    """The options of a decoded column. `schema` and `subject` are None if they are not set."""

    format: str
    schema: str | None
    subject: str | None


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The options of a read."""

    subscription: Subscription | None
    start: Bound | None
    end: Bound | None
    view: str
    as_of: Bound | None
    no_match_is_latest: bool
    fail_on_data_loss: bool
    corrupt_records: CorruptRecords
    min_partitions: int | None
    max_records_per_partition: int | None
    include_headers: bool
    columns: tuple[str, ...] | None
    keys: KeySet | None
    key_format: str | None
    key_schema: str | None
    key_subject: str | None
    value_format: str
    value_schema: str | None
    value_subject: str | None
    schema_registry_url: str | None
    schema_registry_config: str | None
    isolation: str
    group_id: str | None
    group_instance: str | None
    group_reset: str | None
    session_timeout_ms: int
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    max_bytes_per_trigger: int | None
    poll_interval_ms: int | None
    metadata_max_age_ms: int

    @property
    def is_table(self) -> bool:
        return self.view == "table"

    @property
    def decoded(self) -> dict[str, ColumnFormat]:
        """The decoded columns. The format `json` does not determine the type of a column, so such keys remain bytes."""
        columns = {"value": ColumnFormat(self.value_format, self.value_schema, self.value_subject)}
        if self.key_format is not None:
            columns["key"] = ColumnFormat(self.key_format, self.key_schema, self.key_subject)
        return {name: column for name, column in columns.items() if column.format not in ("raw", "json")}

    @property
    def has_rate_limits(self) -> bool:
        limits = self.max_offsets_per_trigger, self.min_offsets_per_trigger, self.max_bytes_per_trigger
        return any(limit is not None for limit in limits)


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """The options of a write."""

    topic: str | None
    codec: Codec | None
    level: int | None
    buffer_bytes: int
    partitions: int
    partitions_given: bool
    configs: Mapping[str, str]
    auto_create: bool
    txn_app_id: str | None
    txn_version: int | None
    replay_mismatch: Literal["error", "accept"]
    transaction_timeout_ms: int


@dataclass(frozen=True)
class Options:
    """All options of one `load` or `save`.

    Attributes:
        path: The path, or None if it is missing.
        read: The options of reads.
        write: The options of writes.
        given: The names of the options that the user has set.
        warnings: Warnings about options that have no effect.
        table: True if the options belong to a table in Spark's catalog. These options apply to reads and writes.
    """

    path: str | None
    read: ReadOptions
    write: SinkOptions
    given: frozenset[str]
    warnings: tuple[str, ...] = ()
    table: bool = False

    def check_read(self) -> None:
        if self.table:
            return
        if self.write.configs:
            raise BadRequest(
                f"Option '{TOPIC_CONFIG}{min(self.write.configs)}' applies only to a write that creates a topic: "
                "remove it from this read; to change the configs of the topic, use `sparklog configs alter`"
            )
        wrong = sorted(n for n in self.given if _BY_NAME[n].used_by == WRITE and n not in LEVELS.values())
        if wrong:
            hint = "; set the topics to read with 'subscribe'" if wrong[0] == "topic" else ""
            raise BadRequest(f"Option '{wrong[0]}' applies only to writes{hint}: remove it from this read")

    def check_write(self) -> None:
        if self.table:
            for name, decoded in self.read.decoded.items():
                if decoded.format != "string":
                    raise BadRequest(
                        f"The table has {name}Format={decoded.format}, which applies only to reads: write to a table "
                        "without this option, or to the path"
                    )
            return
        wrong = sorted(n for n in self.given if "write" not in _BY_NAME[n].used_by and n not in CLIENT_OPTIONS)
        if wrong:
            hint = "; set the topic to write to with 'topic'" if wrong[0] in ("subscribe", "assign") else ""
            raise BadRequest(f"Option '{wrong[0]}' applies only to reads{hint}: remove it from this write")

    def idle(self, use: Literal["batch", "write"]) -> tuple[str, ...]:
        """Return warnings about options that have no effect in a batch read or a write."""
        if self.table:
            return ()
        options = [_BY_NAME[name] for name in sorted(self.given)]
        if use == "write":
            wrong, what, uses = [option for option in options if "write" not in option.used_by], "write", "reads"
        else:
            wrong, what, uses = [option for option in options if option.used_by == STREAM], "batch read", "streams"
        return tuple(f"Option '{option.name}' has no effect in a {what}: it applies only to {uses}" for option in wrong)

    def check_batch_write(self) -> None:
        if self.write.txn_app_id is not None and self.write.txn_version is None:
            raise BadRequest("txnAppId is set without txnVersion: set both, or neither")

    def check_stream_write(self) -> None:
        if self.write.txn_version is not None:
            raise BadRequest(
                "txnVersion applies only to batch writes, because the version of a stream is its batch id: "
                "remove txnVersion"
            )

    def check_batch_read(self) -> None:
        start, end = self.read.start, self.read.end
        if start is not None:
            if start.kind == "latest":
                raise BadRequest(
                    "startingOffsets=latest applies only to streams, because a batch that starts at the end reads "
                    "nothing"
                )
            _reject(
                start, LATEST, "latest (-1) applies only to streams: set the offset to start at, or -2 for earliest"
            )
        if end is not None:
            if end.kind == "earliest":
                raise BadRequest(
                    "endingOffsets must be 'latest' or offsets, because a read that ends at 'earliest' reads nothing"
                )
            _reject(end, EARLIEST, "earliest (-2) cannot be an end: set an offset, or -1 for latest")

    def check_stream_read(self) -> None:
        if self.read.end is not None:
            raise BadRequest(
                f"Option '{self.read.end.option}' applies only to batch reads, because a stream has no end: "
                "remove the option"
            )


def _reject(bound: Bound, value: int, why: str) -> None:
    for topic, offsets in bound.offsets.items():
        for partition, offset in offsets.items():
            if offset == value:
                raise BadRequest(f"{bound.option}: {topic}-{partition}: {why}")


def parse_options(given: Mapping[str, str], *, table: bool = False) -> Options:
    """Parse and check all options. Raises BadRequest for the first error."""
    values: dict[str, str] = {}
    configs: dict[str, str] = {}
    settings: dict[str, str] = {}
    for name, value in given.items():
        if is_setting(name):
            settings[name] = value
            continue
        if name.lower().startswith(TOPIC_CONFIG):
            config = name.lower().removeprefix(TOPIC_CONFIG)
            configs[config] = canonical(config, value)
            continue
        option = find_option(name)
        # The name of an option takes precedence over its aliases.
        if option is not None and (option.name.lower() == name.lower() or option.name not in values):
            values[option.name] = value
    _check_texts(values)
    parsed = {option.field: _parse(values, option) for option in OPTIONS if option.field}
    read, write = _read_options(values, parsed), _sink_options(values, parsed, configs)
    warnings = (
        *_warnings(given, values),
        *(warning for bound in (read.start, read.end, read.as_of) for warning in _seconds(bound)),
    )
    if settings and "path" in values:
        values["path"] = with_settings(values["path"], settings)
    return Options(values.get("path"), read, write, frozenset(values), warnings, table)


def _check_texts(values: Mapping[str, str]) -> None:
    for name, message in {
        "path": "path is empty: set the path of a root, topic directory or Kafka log directory",
        "topic": "Option 'topic' is empty: set the topic to write to",
        "txnAppId": "txnAppId is empty: set the name of the application, which must be the same in every run",
    }.items():
        if name in values and not values[name].strip():
            raise BadRequest(message)
    for name in ("kafka.group.id", "kafka.group.instance.id"):
        if name in values:
            check_id(values[name], name)


def _warnings(given: Mapping[str, str], values: Mapping[str, str]) -> tuple[str, ...]:
    warnings = []
    for side in ("starting", "ending"):
        names = _bound_names(values, side)
        if len(names) > 1:
            overridden = " and ".join(map(repr, names[1:]))
            warnings.append(
                f"Option '{names[0]}' overrides {overridden}, as in Spark's Kafka connector: set only one of them"
            )
    secure = sorted(name for name in given if is_security(name))
    if secure:
        have = "has" if len(secure) == 1 else "have"
        warnings.append(f"{', '.join(secure)} {have} no effect: {SECURITY}")
    return tuple(warnings)


def _seconds(bound: Bound | None) -> tuple[str, ...]:
    """Return a warning if a timestamp looks like seconds."""
    if bound is None or bound.kind != "timestamp":
        return ()
    times = [time for by_partition in (bound.timestamps or {}).values() for time in by_partition.values()]
    for time in times if bound.timestamp is None else [bound.timestamp]:
        warning = seconds_warning(bound.option, time)
        if warning is not None:
            return (warning,)
    return ()


def _read_options(values: Mapping[str, str], parsed: Mapping[str, Any]) -> ReadOptions:
    read = ReadOptions(
        subscription=_subscription(values),
        keys=_keys(values),
        start=_bound(values, "starting"),
        end=_bound(values, "ending"),
        as_of=_as_of(values),
        no_match_is_latest=_parse(values, _BY_NAME["startingOffsetsByTimestampStrategy"]) == "latest",
        **{
            **{name: parsed[name] for name in ReadOptions.__dataclass_fields__ if name in parsed},
            "columns": None if parsed["columns"] is None else listed_columns(parsed["columns"]),
        },
    )
    _check_formats(read)
    low, high = read.min_offsets_per_trigger, read.max_offsets_per_trigger
    if low is not None and high is not None and low > high:
        raise BadRequest(f"minOffsetsPerTrigger ({low}) must not be greater than maxOffsetsPerTrigger ({high})")
    if read.start is not None and read.start.kind == GROUP:
        if read.group_id is None:
            raise BadRequest("startingOffsets=group requires a consumer group: set kafka.group.id")
    elif read.group_reset is not None:
        raise BadRequest(
            "Option 'kafka.auto.offset.reset' requires startingOffsets=group; otherwise, set startingOffsets to "
            "earliest or latest"
        )
    return read


def _check_formats(read: ReadOptions) -> None:
    url = read.schema_registry_url
    subjects = {"keySubject": read.key_subject, "valueSubject": read.value_subject}
    for name, value in {"schemaRegistryConfig": read.schema_registry_config, **subjects}.items():
        if value is not None and url is None:
            raise BadRequest(f"Option '{name}' requires schemaRegistryUrl: set the URL, or remove the option")
    formats = {"key": read.key_format, "value": read.value_format}
    with_schema = [name for name, kind in formats.items() if kind in FORMATS_WITH_SCHEMA]
    for name, schema in (("key", read.key_schema), ("value", read.value_schema)):
        if name not in with_schema:
            unused = f"{name}Schema" if schema is not None else f"{name}Subject" if subjects[f"{name}Subject"] else None
            if unused is not None:
                raise _no_schema(unused, f"{name}Format")
        elif (schema is None and url is None) or (schema is not None and subjects[f"{name}Subject"]):
            raise _two_sources(name, formats[name])
    if url is not None:
        if not with_schema:
            raise _no_schema("schemaRegistryUrl", "keyFormat or valueFormat")
        given = [name for name in with_schema if getattr(read, f"{name}_schema") is not None]
        if given == with_schema:
            raise _two_sources(given[0], formats[given[0]])


def _two_sources(column: str, kind: str | None) -> BadRequest:
    return BadRequest(
        f"{column}Format={kind} requires the schema of the {column}s: set either '{column}Schema' or "
        "'schemaRegistryUrl'"
    )


def _no_schema(option: str, needed: str) -> BadRequest:
    return BadRequest(f"Option '{option}' requires a {needed} with a schema: {', '.join(FORMATS_WITH_SCHEMA)}")


def _sink_options(values: Mapping[str, str], parsed: Mapping[str, Any], configs: Mapping[str, str]) -> SinkOptions:
    if parsed["txn_version"] is not None and parsed["txn_app_id"] is None:
        raise BadRequest("txnVersion is set without txnAppId: set both, or neither")
    given = {name: parsed[name] for name in SinkOptions.__dataclass_fields__ if name in parsed}
    # Like Kafka, also validate the levels of codecs that are not used.
    levels = {codec: _parse(values, _BY_NAME[name]) for codec, name in LEVELS.items()}
    if given["level"] is None:
        given["level"] = levels.get(given["codec"] or "zstd")
    return SinkOptions(**given, configs=configs, partitions_given="num.partitions" in values)


def _keys(values: Mapping[str, str]) -> KeySet | None:
    """Return the keys to read. If `assign` is set, all assigned partitions are searched for the keys."""
    anywhere = _parse(values, _BY_NAME["allPartitions"])
    if "keys" in values and "keysFile" in values:
        raise BadRequest("Set either 'keys' or 'keysFile', not both")
    if "keys" not in values and "keysFile" not in values:
        if anywhere:
            raise BadRequest(
                "Option 'allPartitions' requires 'keys' or 'keysFile': set one of these options, or remove the option"
            )
        return None
    name = "keys" if "keys" in values else "keysFile"
    texts = _texts(values[name]) if name == "keys" else _lines(values[name])
    if not texts:
        raise BadRequest(f"Option '{name}' must contain keys, found none")
    kind = _parse(values, _BY_NAME["keyFormat"]) or "string"
    if kind in FORMATS_WITH_SCHEMA:
        raise BadRequest(
            f"Option '{name}' cannot be used with keyFormat={kind}: filter the decoded column 'key' in the query"
        )
    from sparklog.log.read.key_lookup import KeySet

    return KeySet.of(parse_keys(texts, kind, f"Option '{name}'"), anywhere or "assign" in values)


def _lines(path: str) -> list[str]:
    """Return the non-empty lines of a file."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise BadRequest(f"Option 'keysFile' must be a readable file: {path!r}: {error.strerror}") from None
    return [text.decode("utf-8", "surrogateescape") for line in lines if (text := line.removesuffix(b"\r"))]


def _texts(text_of_keys: str) -> list[str]:
    """Return the items of a comma-separated list or of a JSON list."""
    if not text_of_keys.lstrip().startswith("["):
        return [text for part in text_of_keys.split(",") if (text := part.strip())]
    try:
        listed = parse_json(text_of_keys)
        if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
            raise ValueError(f"expected strings, found {text_of_keys}")
    except ValueError as error:
        raise BadRequest(f'Option \'keys\' must be strings, or a JSON list such as ["a","b"]: {error}') from None
    return listed


def _subscription(values: Mapping[str, str]) -> Subscription | None:
    forms = [name for name in ("subscribe", "subscribePattern", "assign") if name in values]
    if not forms:
        return None
    if len(forms) > 1:
        raise BadRequest(
            f"Set one of 'subscribe', 'subscribePattern' and 'assign', not {' and '.join(map(repr, forms))}"
        )
    text = values[forms[0]]
    if forms[0] == "assign":
        return _assignment(text)
    if forms[0] == "subscribe":
        topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not topics:
            raise BadRequest("Option 'subscribe' must be a comma-separated list of topics, found an empty list")
        return Subscription(topics=topics)
    try:
        re.compile(text)
    except re.error as error:
        raise BadRequest(f"Option 'subscribePattern' is not a regular expression: {text!r}: {error}") from None
    if not text.strip():
        raise BadRequest("Option 'subscribePattern' is empty: set a regular expression that matches full topic names")
    return Subscription(pattern=text)


def _assignment(text: str) -> Subscription:
    try:
        document = parse_json(text)
        if not isinstance(document, dict) or not document:
            raise ValueError(f"found {text!r}")
        partitions: dict[str, tuple[int, ...]] = {}
        for topic, numbers in document.items():
            if not isinstance(numbers, list) or not numbers:
                raise ValueError(f"topic {topic!r} must have a list of partitions, found {numbers!r}")
            partitions[topic] = tuple(sorted({parse_partition(topic, number) for number in numbers}))
    except ValueError as error:
        raise BadRequest(f"Option 'assign' must be JSON such as {{\"topic\":[0,1]}}: {error}") from None
    return Subscription(topics=tuple(partitions), partitions=partitions)


def _bound(values: Mapping[str, str], side: str) -> Bound | None:
    names = _bound_names(values, side)
    if not names:
        return None
    name, text = names[0], values[names[0]].strip()
    if name == f"{side}Timestamp":
        return Bound("timestamp", name, timestamp=_time(name, text))
    if name == f"{side}OffsetsByTimestamp":
        return Bound("timestamp", name, timestamps=_per_partition(name, text, "timestamp", 0))
    words = ("earliest", "latest", GROUP) if side == "starting" else ("earliest", "latest")
    if text.lower() in words:
        return Bound(text.lower(), name)
    return Bound("offsets", name, offsets=_per_partition(name, text, "offset", EARLIEST, words))


def _as_of(values: Mapping[str, str]) -> Bound | None:
    if "asOfTimestamp" in values:
        return Bound("timestamp", "asOfTimestamp", timestamp=_time("asOfTimestamp", values["asOfTimestamp"].strip()))
    if "asOfOffsets" not in values:
        return None
    offsets = _per_partition("asOfOffsets", values["asOfOffsets"].strip(), "offset", LATEST)
    return Bound("offsets", "asOfOffsets", offsets=offsets)


def _bound_names(values: Mapping[str, str], side: str) -> list[str]:
    """Return the options that are set for the start or the end, in the same order of precedence as in Kafka's
    connector.
    """
    return [name for name in (f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets") if name in values]


def _per_partition(
    name: str, text: str, what: str, lowest: int, words: tuple[str, ...] = ()
) -> dict[str, dict[int, int]]:
    listed = ", ".join(map(repr, words)) + " or " if words else ""
    try:
        if words and not text.startswith("{"):
            raise ValueError(f"found {text!r}{did_you_mean(text.lower(), words)}")
        document = parse_json(text)
        if what == "timestamp":
            document = _with_milliseconds(document)
        numbers = parse_partition_numbers(document, what, lowest=lowest)
        if not any(numbers.values()):
            raise ValueError("it does not list any partition")
    except ValueError as error:
        raise BadRequest(f'Option \'{name}\' must be {listed}JSON such as {{"topic":{{"0":23}}}}: {error}') from None
    return numbers


def _with_milliseconds(document: object) -> object:
    """Replace times in strings such as `{"topic": {"0": "2026-01-31T12:00:00"}}` with milliseconds. Raises ValueError
    if a time is invalid.
    """
    if isinstance(document, dict):
        return {key: _with_milliseconds(value) for key, value in document.items()}
    if not isinstance(document, str):
        return document
    try:
        return parse_iso_time(document.strip())
    except ValueError:
        raise ValueError(f"expected {TIMESTAMP.valid}, found {document!r}") from None


def _time(name: str, text: str) -> int:
    try:
        return int(TIMESTAMP.parse(text))
    except ValueError:
        raise TIMESTAMP.invalid(f"Option '{name}'", text) from None


def _parse(values: Mapping[str, str], option: Setting) -> Any:
    """Return the value of an option, or its default if it is not set. Raises BadRequest for an invalid value."""
    if option.name not in values:
        return option.default
    text = values[option.name]
    try:
        return text if option.type is TEXT else option.type.parse(text.strip().lower())
    except ValueError:
        raise option.type.invalid(f"Option '{option.name}'", text) from None
