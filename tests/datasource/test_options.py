"""Options: names, values and one-line errors."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from sparklog.datasource import option_table, schema
from sparklog.datasource.option_table import (
    CORRUPT_RECORDS,
    ISOLATION_LEVELS,
    KAFKA_IGNORED,
    KEY_FORMATS,
    OPTIONS,
    find_option,
)
from sparklog.datasource.options import Bound, ReadOptions, SinkOptions, Subscription, parse_options
from sparklog.errors import BadRequest
from sparklog.format.record_batch import CODECS
from sparklog.format.values import FORMATS
from sparklog.kafka.in_place.segment_recovery import FAIL, POLICIES, SKIP
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, READ_UNCOMMITTED
from sparklog.log.write.append_target import MAX_BUFFER_BYTES


def message(options: dict[str, str], check: str | None = None) -> str:
    def parse() -> None:
        parsed = parse_options(options)
        if check is not None:
            getattr(parsed, check)()

    with pytest.raises(BadRequest) as error:
        parse()
    text = str(error.value)
    assert "\n" not in text
    return text


def test_defaults_are_those_of_the_connector_but_for_the_isolation_level() -> None:
    read = parse_options({}).read
    assert (read.start, read.end, read.fail_on_data_loss, read.include_headers) == (None, None, True, False)
    assert read.isolation == "read_committed"
    assert read.max_trigger_delay_ms == 15 * 60 * 1000
    write = parse_options({}).write
    assert (write.partitions, write.auto_create, write.replay_mismatch, write.codec) == (1, True, "error", None)


def test_choices_equal_their_definitions() -> None:
    assert CORRUPT_RECORDS == POLICIES
    assert option_table.CODECS == CODECS
    assert ISOLATION_LEVELS == (READ_COMMITTED, READ_UNCOMMITTED)
    assert schema.COLUMNS == COLUMNS
    assert {*KEY_FORMATS} == {*FORMATS}
    assert parse_options({}).read.corrupt_records == FAIL
    assert parse_options({"corruptrecords": "Skip"}).read.corrupt_records == SKIP


def test_names_are_found_in_any_case() -> None:
    for option in OPTIONS:
        assert find_option(option.name.lower()) == find_option(option.name.upper()) == option


def test_the_table_documents_every_option_and_fills_every_field() -> None:
    made = {"subscription", "keys", "start", "end", "as_of", "no_match_is_latest", "configs", "partitions_given"}
    wanted = [each.name for kind in (ReadOptions, SinkOptions) for each in fields(kind) if each.name not in made]
    assert sorted(option.field for option in OPTIONS if option.field) == sorted(wanted)
    for option in OPTIONS:
        assert option.doc.endswith("."), option.name
        assert option.used_by
        assert option.unit or option.type.name not in ("time", "timestamp")


def test_settings_of_kafka_clients_are_accepted_without_effect() -> None:
    names = [*KAFKA_IGNORED, "kafka.sasl.jaas.config", "kafka.ssl.truststore.location", "kafkaconsumer.polltimeoutms"]
    parsed = parse_options(dict.fromkeys(names, "x") | {"checkpointlocation": "/c", "queryname": "q"})
    assert parsed.given == frozenset()


@pytest.mark.parametrize("side", ["starting", "ending"])
def test_bounds_have_the_precedence_of_the_connector(side: str) -> None:
    """A timestamp for all partitions, timestamps by partition, and offsets. Overridden options are not validated."""
    names = [f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"]
    texts = dict(zip(names, ("7", '{"a":{"0":8}}', '{"a":{"0":9}}'), strict=True))

    def bound(options: dict[str, str]) -> Bound | None:
        parsed = parse_options(options)
        assert len(parsed.warnings) == (len(options) > 1)
        return parsed.read.start if side == "starting" else parsed.read.end

    assert bound(texts) == Bound("timestamp", names[0], timestamp=7)
    assert bound({name: texts[name] for name in names[1:]}) == Bound("timestamp", names[1], timestamps={"a": {0: 8}})
    assert bound({names[2]: texts[names[2]]}) == Bound("offsets", names[2], offsets={"a": {0: 9}})
    assert bound({**texts, names[2]: "nonsense"}) == Bound("timestamp", names[0], timestamp=7)
    (warning,) = parse_options(texts).warnings
    assert warning == (
        f"Option '{names[0]}' overrides '{names[1]}' and '{names[2]}', as in Spark's Kafka connector: "
        "set only one of them"
    )


def test_broker_security_options_have_no_effect_and_warn() -> None:
    names = ["kafka.security.protocol", "kafka.sasl.jaas.config", "kafka.ssl.truststore.location"]
    (warning,) = parse_options(dict.fromkeys(names, "secret")).warnings
    assert warning.startswith(f"{', '.join(sorted(names))} have no effect: it secures connections to brokers")
    assert "secret" not in warning
    assert parse_options({"kafka.bootstrap.servers": "host:9092"}).warnings == ()
    for name in ("security.protocol", "sasl.mechanism", "ssl.keystore.location"):
        assert message({name: "x"}).startswith(f"Unknown option '{name}': it secures connections to brokers")


@pytest.mark.parametrize(
    "name",
    ["transactional.id.expiration.ms", "log.flush.interval.messages", "request.required.acks", "processing.guarantee"],
)
def test_names_of_kafka_configs_get_no_spelling_hint(name: str) -> None:
    for given in (name, f"kafka.{name}"):
        answer = message({given: "1"})
        assert answer.startswith(f"Unknown option '{given}': ")
        assert answer.endswith("; remove it")
        assert "did you mean" not in answer


def test_settings_with_our_meaning_under_kafkas_name() -> None:
    parsed = parse_options({"kafka.compression.type": "gzip", "kafka.compression.gzip.level": "7"})
    assert (parsed.write.codec, parsed.write.level) == ("gzip", 7)
    assert parse_options({"kafka.compression.lz4.level": "7"}).write.level is None
    assert parse_options({"kafka.metadata.max.age.ms": "5"}).read.metadata_max_age_ms == 5


def test_how_long_a_transaction_may_stay_open() -> None:
    assert parse_options({}).write.transaction_timeout_ms == 60_000
    for name in ("transaction.timeout.ms", "kafka.transaction.timeout.ms"):
        assert parse_options({name: "5000"}).write.transaction_timeout_ms == 5000
        assert "only to writes" in message({name: "5000"}, "check_read")
    assert parse_options({"transaction.timeout.ms": "86400000"}).write.transaction_timeout_ms == 86_400_000
    assert message({"transaction.timeout.ms": "86400001"}) == (
        "Option 'transaction.timeout.ms' must be an integer from 1 to 86400000, found '86400001'"
    )
    assert message({"transaction.timeout.ms": "0"}).endswith("must be an integer from 1 to 86400000, found '0'")
    assert message({"transaction.timeout": "1"}).endswith("did you mean 'transaction.timeout.ms'?")


def test_the_sparklog_name_overrides_the_kafka_name() -> None:
    for order in (("compression.type", "kafka.compression.type"), ("kafka.compression.type", "compression.type")):
        given = {name: "lz4" if name == "compression.type" else "gzip" for name in order}
        assert parse_options(given).write.codec == "lz4"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingoffset": "earliest"}, "Unknown option 'startingoffset': did you mean 'startingOffsets'?"),
        ({"kafka.bootstrap.server": "x"}, "did you mean 'kafka.bootstrap.servers'?"),
        ({"frobnicate": "x"}, "there is no such option; remove it"),
        ({"kafka.auto.offset.reset": "earliest"}, "set startingOffsets"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "Set one of"),
        ({"subscribe": " , "}, "must be a comma-separated list of topics"),
        ({"keys": ""}, "Option 'keys' must contain keys, found none"),
        ({"keys": " , "}, "Option 'keys' must contain keys, found none"),
        ({"keys": "[]"}, "Option 'keys' must contain keys, found none"),
        (
            {"keys": "[1]"},
            'Option \'keys\' must be strings, or a JSON list such as ["a","b"]: expected strings, found [1]',
        ),
        ({"keys": "[a"}, "Option 'keys' must be strings, or a JSON list such as"),
        ({"keys": "a", "keysfile": "/f"}, "Set either 'keys' or 'keysFile', not both"),
        ({"keysfile": "/nowhere/f"}, "must be a readable file: '/nowhere/f': No such file or directory"),
        ({"keysfile": "/dev/null"}, "Option 'keysFile' must contain keys, found none"),
        ({"allpartitions": "true"}, "Option 'allPartitions' requires 'keys' or 'keysFile': set one of these"),
        ({"keyformat": "raw", "keys": "a"}, "Option 'keyFormat' must be string, short, integer"),
        ({"keyformat": "long", "keys": "1,a"}, "Option 'keys': expected a long, found 'a'"),
        ({"allpartitions": "yes", "keys": "a"}, "Option 'allPartitions' must be true or false"),
        ({"subscribepattern": "a("}, "is not a regular expression"),
        ({"assign": '{"a":[]}'}, "must have a list of partitions"),
        ({"assign": '{"a":[-1]}'}, "invalid partition -1 of topic 'a': expected an integer >= 0"),
        ({"assign": "[]"}, "must be JSON such as"),
        ({"assign": "[" * 100_000}, "the JSON is nested too deeply"),
        ({"assign": '{"a":[0],"a":[1]}'}, "'a' is given twice"),
        ({"startingoffsets": "erliest"}, "found 'erliest'; did you mean 'earliest'?"),
        ({"startingoffsets": '{"a":{"0":1.5}}'}, "must be an integer >= -2, found 1.5"),
        ({"startingoffsets": '{"a":{"0":-3}}'}, "must be an integer >= -2, found -3"),
        ({"startingoffsets": '{"a":{"0":true}}'}, "found True"),
        ({"startingoffsets": '{"a":{"x":1}}'}, "invalid partition 'x' of topic 'a': expected an integer >= 0"),
        ({"startingoffsets": '{"a":'}, " at character "),
        ({"startingoffsets": "{}"}, "does not list any partition"),
        ({"startingoffsets": '{"a":1}'}, "must map partitions to offsets"),
        ({"startingoffsetsbytimestamp": '{"a":{"0":-1}}'}, "must be an integer >= 0"),
        (
            {"startingtimestamp": "yesterday"},
            "must be milliseconds or a time such as '2026-01-31T12:00:00' (UTC), found 'yesterday'",
        ),
        ({"endingtimestamp": "-5"}, "must be milliseconds or a time such as '2026-01-31T12:00:00' (UTC), found '-5'"),
        ({"endingtimestamp": str(1 << 63)}, "must be milliseconds or a time such as"),
        ({"startingoffsetsbytimestamp": '{"a":{"0":"soon"}}'}, "expected milliseconds or a time such as"),
        ({"startingoffsets": '{"a":{"0":"2026-01-31T12:00:00"}}'}, "must be an integer >= -2"),
        (
            {"versionasof": "3"},
            "Option 'versionAsOf' is not supported: a log is read by offsets or times: set starting",
        ),
        (
            {"TimestampAsOf": "3"},
            "Option 'timestampAsOf' is not supported: a log is read by offsets or times: set start",
        ),
        ({"startingversion": "3"}, "Option 'startingVersion' is not supported: a log is read by offsets or times"),
        (
            {"asyncprogresstrackingenabled": "true"},
            "Option 'asyncProgressTrackingEnabled' is not supported: a restarted query may then reuse a batch id",
        ),
        (
            {"_asyncProgressTrackingOverrideSinkSupportCheck": "true", "asyncProgressTrackingEnabled": "true"},
            "Option 'asyncProgressTrackingEnabled' is not supported: a restarted query may then reuse a batch id",
        ),
        ({"asyncProgressTrackingCheckpointIntervalMs": "9"}, "Option 'asyncProgressTrackingEnabled' is not supported"),
        ({"paths": '["/a","/b"]'}, "load accepts one path: load the root with subscribe='a,b', or load each path and"),
        ({"topic.retention.mss": "1"}, "unknown topic config 'retention.mss'; did you mean 'retention.ms'?"),
        ({"topic.retention.ms": "soon"}, "retention.ms must be an integer of at least -1, found 'soon'"),
        (
            {"retention.ms": "1"},
            "a write that creates a topic accepts configs as 'topic.retention.ms'; `sparklog conf",
        ),
        ({"kafka.retention.ms": "1"}, "a write that creates a topic accepts configs as 'topic.retention.ms'"),
        ({"startingoffsetsbytimestampstrategy": "last"}, "did you mean 'latest'?"),
        ({"failondataloss": "yes"}, "must be true or false, found 'yes'"),
        ({"minpartitions": "0"}, "'minPartitions' must be an integer of at least 1, found '0'"),
        ({"maxoffsetspertrigger": "1e3"}, "must be an integer"),
        ({"maxtriggerdelay": "5 parsecs"}, "must be a duration such as '15m'"),
        ({"minoffsetspertrigger": "5", "maxoffsetspertrigger": "4"}, "must not be greater"),
        ({"corruptrecords": "skp"}, "'corruptRecords' must be fail, skip or truncate, found 'skp'"),
        ({"kafka.isolation.level": "read_comitted"}, "did you mean 'read_committed'?"),
        ({"compression.type": "zst"}, "did you mean 'zstd'?"),
        ({"num.partitions": "0"}, "'num.partitions' must be an integer of at least 1"),
        (
            {"write.buffer.bytes": str(MAX_BUFFER_BYTES + 1)},
            "must be an integer from 1 to 1073741824, found '1073741825'",
        ),
        ({"txnversion": "3"}, "txnVersion is set without txnAppId"),
        ({"replaymismatch": "acept"}, "did you mean 'accept'?"),
        ({"topic": " "}, "Option 'topic' is empty"),
        ({"path": " "}, "path is empty"),
    ],
)
def test_a_mistake_is_a_one_line_error(options: dict[str, str], expected: str) -> None:
    assert expected in message(options)


def test_options_of_reads_and_of_writes() -> None:
    assert "latest applies only to streams" in message({"startingoffsets": "latest"}, "check_batch_read")
    assert "a-1: latest (-1) applies only to streams" in message(
        {"startingoffsets": '{"a":{"0":1,"1":-1}}'}, "check_batch_read"
    )
    assert "reads nothing" in message({"endingoffsets": "earliest"}, "check_batch_read")
    assert "a-0: earliest (-2)" in message({"endingoffsets": '{"a":{"0":-2}}'}, "check_batch_read")
    assert "a stream has no end" in message({"endingtimestamp": "1"}, "check_stream_read")
    assert "set the topics to read with 'subscribe'" in message({"topic": "a"}, "check_read")
    assert "set the topic to write to with 'topic'" in message({"subscribe": "a"}, "check_write")

    config = message({"topic.retention.ms": "-1"}, "check_read")
    assert config.startswith(
        "Option 'topic.retention.ms' applies only to a write that creates a topic: remove it from this read"
    )
    assert "`sparklog configs alter`" in config


@pytest.mark.parametrize(
    ("use", "given", "warning"),
    [
        (
            "batch",
            {"maxoffsetspertrigger": "5"},
            "'maxOffsetsPerTrigger' has no effect in a batch read: it applies only to streams",
        ),
        ("batch", {"minpartitions": "5", "failondataloss": "false"}, None),
        ("write", {"kafka.isolation.level": "read_committed"}, "'kafka.isolation.level' has no effect in a write"),
        ("write", {"includeheaders": "true", "topic": "t"}, None),
    ],
)
def test_an_option_without_effect_warns(use: str, given: dict[str, str], warning: str | None) -> None:
    warnings = parse_options(given).idle(use)  # type: ignore[arg-type]
    assert len(warnings) == (warning is not None)
    assert warning is None or warning in warnings[0]


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-01-31T12:00:00", 1769860800000),
        (" 2026-01-31T12:00:00Z ", 1769860800000),
        ("2026-01-31T13:00:00+01:00", 1769860800000),
        ("2026-01-31", 1769817600000),
        ("1769860800000", 1769860800000),
        (str((1 << 63) - 1), (1 << 63) - 1),
    ],
)
def test_times_are_milliseconds_or_iso(text: str, ms: int) -> None:
    for name in ("startingtimestamp", "endingtimestamp"):
        read = parse_options({name: text}).read
        assert (read.start or read.end) == Bound("timestamp", name.replace("timestamp", "Timestamp"), timestamp=ms)
    if not text.strip().isdigit():
        read = parse_options({"startingoffsetsbytimestamp": f'{{"a":{{"0":"{text}","1":7}}}}'}).read
        assert read.start is not None
        assert read.start.timestamps == {"a": {0: ms, 1: 7}}


@pytest.mark.parametrize(
    "given", [{"startingtimestamp": "1700000000"}, {"endingoffsetsbytimestamp": '{"a":{"0":1700000000}}'}]
)
def test_timestamps_in_seconds_warn(given: dict[str, str]) -> None:
    (warning,) = parse_options(given).warnings
    assert warning.endswith(
        ": 1700000000 means 1970-01-20T16:13:20.000Z, because times are in milliseconds; if the time is in seconds,"
        " use 1700000000000 or '2023-11-14T22:13:20.000Z'"
    )
    assert parse_options({"startingtimestamp": "1700000000000"}).warnings == ()


def test_subscriptions() -> None:
    assert parse_options({"subscribe": "b, a,b"}).read.subscription == Subscription(topics=("b", "a"))
    assert parse_options({"subscribepattern": "a.*"}).read.subscription == Subscription(pattern="a.*")
    assigned = parse_options({"assign": '{"a":[1,0,1]}'}).read.subscription
    assert assigned == Subscription(topics=("a",), partitions={"a": (0, 1)})


@pytest.mark.parametrize(
    ("text", "ms"), [("15m", 900_000), ("90s", 90_000), ("500ms", 500), ("250", 250), ("2 h", 7_200_000), ("0", 0)]
)
def test_times(text: str, ms: int) -> None:
    assert parse_options({"maxtriggerdelay": text}).read.max_trigger_delay_ms == ms


def test_bounds_are_parsed() -> None:
    read = parse_options({"startingoffsets": '{"a":{"10":5,"2":-2}}', "endingtimestamp": "77"}).read
    assert read.start is not None
    assert read.start.offsets == {"a": {10: 5, 2: -2}}
    assert read.end is not None
    assert (read.end.kind, read.end.timestamp, read.end.option) == ("timestamp", 77, "endingTimestamp")
    assert parse_options({"startingoffsets": " Latest "}).read.start.kind == "latest"  # type: ignore[union-attr]


def test_keys_of_a_read(tmp_path: Path) -> None:
    def keys(**options: str) -> tuple[tuple[bytes, ...], bool]:
        found = parse_options(options).read.keys
        assert found is not None
        return found.keys, found.anywhere

    file = tmp_path / "keys"
    file.write_bytes(b"a b\n\xff\r\n\n,\na b")
    assert keys(keys="a, \u00e9,a") == ((b"a", b"\xc3\xa9"), False)
    assert keys(keys=' ["a,b", ""]') == ((b"a,b", b""), False)
    assert keys(keysfile=str(file)) == ((b"a b", b"\xff", b","), False)
    assert keys(keys="a", allpartitions="true") == keys(keys="a", assign='{"t":[1]}') == ((b"a",), True)
    assert keys(keys="1, -1", keyformat="integer") == ((b"\0\0\0\1", b"\xff" * 4), False)
    file.write_bytes(b"00ff\n2a\n")
    assert keys(keysfile=str(file), keyformat="HEX") == ((b"\0\xff", b"*"), False)
    assert parse_options({}).read.keys is None
