"""Test public calls with arguments of wrong types: they raise only sparklog errors of one line."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

import sparklog
from sparklog.common import units
from sparklog.errors import BadRequest, NotFound, SparklogError, shortened
from sparklog.log.write.arrow_data import ArrowData

KAFKA = str(Path(__file__).parents[1] / "examples" / "data" / "kafka-log-dir")
DATA = pa.table({"key": ["a", "b"], "value": ["1", "2"]})
WRONG: tuple[Any, ...] = (None, 5, -1, 1.5, True, b"x", "x", "", "\0", ["x"], [5], [None], {"x": 1}, {0: "x"}, object())
WRONG += (10**30, "\ud800", ["\ud800"], {"\ud800": 1}, "a\nb", ["a\nb"], "\u2028", "y" * 5000)


class Connection:
    """The part of a connection that `sparklog.duckdb` uses."""

    def register(self, name: str, dataset: object) -> None:
        """Accept a dataset."""


class Place:
    """A root with a topic, and new paths next to the root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = sparklog.open(folder / "log", create=True)
        self.topic = self.root.create_topic("t")
        self.topic.append(DATA)
        self._numbers = count()
        self._producer: sparklog.Producer | None = None
        self._consumers: dict[str, sparklog.Consumer] = {}

    def new(self) -> str:
        return str(self.folder / f"new{next(self._numbers)}")

    def consumer(self, user: str) -> sparklog.Consumer:
        """Return the only consumer of this test. If it was closed, the next call creates a new consumer."""
        if user not in self._consumers or user == "close":
            self._consumers[user] = sparklog.consumer(self.root, "g", topics="t", auto_offset_reset="earliest")
        return self._consumers[user]

    def made_producer(self, producer_id: Any, transactional_id: Any) -> None:
        sparklog.producer(self.root, producer_id=producer_id, transactional_id=transactional_id).close()

    def send(self, topic: str, value: Any, key: Any = None, headers: Any = None) -> None:
        with sparklog.producer(self.root, linger_ms=0) as producer:
            producer.send(topic, value, key, headers=headers).result(10)

    def send_many(self, topic: str, data: ArrowData) -> None:
        with sparklog.producer(self.root, linger_ms=0) as producer:
            for future in producer.send_many(topic, data):
                future.result(10)

    def producer(self) -> sparklog.Producer:
        """Return a producer that numbers its records. It is closed with the test's root."""
        if self._producer is None:
            self._producer = sparklog.producer(self.root, producer_id="numbered", linger_ms=0)
        return self._producer

    @property
    def send_numbered(self) -> Callable[..., object]:
        """Call `Producer.send`, and wait for the record."""

        @wraps(self.producer().send)
        def send(**given: Any) -> object:
            return self.producer().send(**given).result(10)

        return send

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()

    @property
    def closed_producer(self) -> Callable[..., object]:
        """Create and close a producer. The function has the signature of `sparklog.producer`."""

        @wraps(sparklog.producer)
        def make(**options: Any) -> None:
            sparklog.producer(**options).close()

        return make

    def transaction(self) -> sparklog.Transaction:
        return sparklog.transactional(self.root, "etl").begin()


Calls = dict[str, tuple[Callable[[Place], Callable[..., object]], Callable[[Place], dict[str, Any]]]]
NEVER = {"version": 99}
"""A version that no topic of a test reaches, so that the topic is not deleted."""


def new(place: Place) -> str:
    return place.new()


def root(place: Place) -> sparklog.Root:
    return place.root


def path(place: Place) -> str:
    return place.root.location


ROOT = {"root": root}


def session(_: object) -> Mock:
    """Return a Spark session that plans with this Python."""
    spark = Mock()
    sources = spark._jsparkSession.sessionState.return_value.dataSourceManager.return_value
    sources.lookupDataSource.return_value.dataSourceCls.return_value.pythonExec.return_value = sys.executable
    return spark


READ: dict[str, Any] = {"spark": session, "path": path}
"""Arguments of a read into a DataFrame."""


def calls(view: sparklog.View) -> Calls:
    """Return the public calls by name, with valid arguments of each."""
    made: Calls = {}

    def add(name: str, of: Callable[[Place], Callable[..., object]], /, **given: Any) -> None:
        made[name] = of, lambda place: {key: value(place) if callable(value) else value for key, value in given.items()}

    add("open", lambda _: sparklog.open, location=path)
    add("open_view", lambda _: sparklog.open_view, path=KAFKA)
    add("View.topic", lambda p: sparklog.open_view(p.root.location).topic, name="t")
    add("View.topic of Kafka", lambda _: view.topic, name="txn-a")
    for name, given in (("scan", {}), ("offset_for_timestamp", {"timestamp_ms": 1})):
        add(f"TopicReader.{name} of Kafka", lambda _, name=name: getattr(view.topic("txn-a"), name), **given)  # type: ignore[misc]
    for name, given in {
        "compact": ROOT, "datasets": ROOT, "polars": ROOT, "retain": {**ROOT, "dry_run": True},
        "verify": {"path": root}, "repair": {"path": root}, "read": READ, "read_stream": READ,
    }.items():  # fmt: skip
        add(name, lambda _, name=name: getattr(sparklog, name), **given)  # type: ignore[misc]
    add("backup", lambda _: sparklog.backup, root=root, to=new)
    add("restore", lambda _: sparklog.restore, source=path, to=new, dry_run=True)
    add("clone", lambda _: sparklog.clone, root=root, topic="t", name="clone", dry_run=True)
    add("import_kafka", lambda _: sparklog.import_kafka, root=new, log_dir=KAFKA, topics=("txn-a",), dry_run=True)
    add("export_kafka", lambda _: sparklog.export_kafka, root=root, topics=("t",), to=new)
    add("duckdb", lambda _: sparklog.duckdb, con=lambda _: Connection(), root=root)
    add("table", lambda _: sparklog.table, root=root, topic="t")
    add("consumer", lambda _: sparklog.consumer, root=root, group="g", topics=("t",))
    add("transactional", lambda _: sparklog.transactional, root=root, transactional_id="x")
    add("producer", lambda p: p.made_producer, producer_id=None, transactional_id=None)
    add("Producer.send", lambda p: p.send, topic="t", value="v")
    add("Producer.send_many", lambda p: p.send_many, topic="t", data=DATA)
    add("Producer.send of a field", lambda p: p.send_numbered, topic="t", value="v", sequence=1)
    add("producer of options", lambda p: p.closed_producer, root=root)
    for name, given in {"partitions_for": {"topic": "t"}, "last_sequence": {"topic": "t"}, "flush": {}}.items():
        add(f"Producer.{name}", lambda p, name=name: getattr(p.producer(), name), **given)  # type: ignore[misc]
    add("repartition", lambda _: sparklog.repartition, root=root, topic="t", name="wider", partitions=3)
    add("Groups", lambda _: sparklog.Groups, root=root)
    add("WriteOptions", lambda _: sparklog.WriteOptions)
    add("WriterKey", lambda p: lambda id, batch, run=None: p.topic.append(  # noqa: A006
        DATA, writer=sparklog.WriterKey(id, batch, run)), id="w", batch=0)  # fmt: skip
    for name, given in {
        "topics": {}, "topic": {"name": "t"}, "create_topic": {"name": "t"}, "ensure_topic": {"name": "t"},
        "delete_topic": {"name": "nothing"}, "alter_defaults": {"changes": {}},
    }.items():  # fmt: skip
        add(f"Root.{name}", lambda p, name=name: getattr(p.root, name), **given)  # type: ignore[misc]
    for name, given in {
        "alter": {}, "plan_alter": {}, "delete_records": {"before": {0: 0}}, "plan_delete_records": {"before": {0: 0}},
        "append": {"data": DATA}, "scan": {}, "table": {}, "count": {}, "offset_for_timestamp": {"timestamp_ms": 1},
        "record_at": {"partition": 0, "offset": 0}, "get": {"key": "a"}, "end_kafka_transactions": {}, "delete": NEVER,
    }.items():  # fmt: skip
        add(f"Topic.{name}", lambda p, name=name: getattr(p.topic, name), **given)  # type: ignore[misc]
    for name, given in {
        "poll": {}, "position": {"topic": "t", "partition": 0}, "seek": {"topic": "t", "partition": 0, "offset": 0},
        "commit": {}, "close": {}, "commit_async": {}, "subscribe": {"topics": "t"},
        "beginning_offsets": {"partitions": {"t": [0]}}, "end_offsets": {"partitions": [("t", 0)]},
        "offsets_for_times": {"times": {("t", 0): 1}}, "seek_to_timestamp": {"timestamp_ms": 1},
    }.items():  # fmt: skip
        add(f"Consumer.{name}", lambda p, name=name: getattr(p.consumer(name), name), **given)  # type: ignore[misc]
    add("Consumer.assign", lambda p: sparklog.consumer(p.root, "h").assign, partitions={"t": [0]})
    add("TopicTable.follow", lambda p: p.topic.table().follow)
    for name, given in {"get": {"key": "a"}, "__contains__": {"key": "a"}, "wait": {"timeout_s": 0}}.items():
        add(f"FollowedTable.{name}", lambda p, name=name: getattr(p.topic.table().follow(), name), **given)  # type: ignore[misc]
    add("Transaction.append", lambda p: p.transaction().append, topic="t", data=DATA)
    add("Transaction.send_offsets", lambda p: p.transaction().send_offsets, group="h", offsets={"t": {0: 1}})
    add("TransactionalProducer.join", lambda p: sparklog.transactional(p.root, "etl").join, n=1)
    for name, given in {"group": {"name": "h"}, "descriptions": {"names": ("h",)}}.items():
        add(f"Groups.{name}", lambda p, name=name: getattr(sparklog.Groups(p.root), name), **given)  # type: ignore[misc]
    of_group = {"join": {}, "alter": {"offsets": {"t": {0: 1}}}, "delete_offsets": {"gone": {"t": [0]}}}
    for name, given in of_group.items():
        add(f"Group.{name}", lambda p, name=name: getattr(sparklog.Groups(p.root).group("h"), name), **given)  # type: ignore[misc]
    return made


CALLS = calls(sparklog.open_view(KAFKA))
WAITS = {("Consumer.poll", 5), ("Consumer.poll", 1.5), ("FollowedTable.wait", None), ("FollowedTable.wait", 5),
         ("FollowedTable.wait", 1.5), ("Consumer.poll", 10**30), ("FollowedTable.wait", 10**30)}  # fmt: skip
"""Valid arguments that make a call wait."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Each test has its own root, because valid calls write to it, and calls such as verify and backup
    read all of it.
    """
    return Place(tmp_path)


def outcome(call: Callable[..., object], given: Mapping[str, Any]) -> Exception | None:
    try:
        made = call(**given)
        if isinstance(made, (sparklog.Scan, sparklog.TopicTable, Iterator)) and not isinstance(made, sparklog.Consumer):
            list(made)
    except Exception as error:  # noqa: BLE001  (which kind comes out is the question)
        return error
    return None


@pytest.mark.parametrize("name", CALLS)
def test_wrong_types_are_rejected_with_a_message(place: Place, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.folder)  # A string is a valid path.
    of, right = CALLS[name]
    parameters = [
        each for each in inspect.signature(of(place)).parameters if each not in ("spark", "env", "failures", "say")
    ]
    raw = []
    for parameter in parameters:
        for wrong in WRONG:
            if isinstance(wrong, (int, float, type(None))) and (name, wrong) in WAITS:
                continue
            error = outcome(of(place), {**right(place), parameter: wrong})
            if error is not None and (not isinstance(error, SparklogError) or "\n" in str(error)):
                raw.append((parameter, wrong, error))
    assert raw == []


NUMBER = (
    "5",
    "",
    b"5",
    1.5,
    float("nan"),
    True,
    [1],
    object(),
    "\ud800",
    np.float64(1.5),
    np.bool_(True),
    np.array([1, 2]),
)
NAME = (5, 1.5, True, b"x", ["x"], {"x": 1}, "\ud800", object())
NAMES = ("x", b"x", 5, True, [5], [None], ["\ud800"], object())
SECONDS = ("5", "", b"5", float("nan"), True, False, [1], -1, -0.5, "\ud800", object())
PATHS = (5, b"x", "", "\0", "\ud800", ["x"], True, 1.5)
CONFIGS = (5, "x", b"x", ["x"], {5: 1}, {"\ud800": 1}, True, object())
CHOICE = ("x", "", 5, b"x", True, ["x"], "\ud800")
LIST_OF_NUMBERS = (5, "x", ["x"], [True], [1.5], [None], {"x": 1}, [np.array([1, 2])])
PARTITIONS = (5, "x", b"x", {"t": 5}, {"t": ["x"]}, {"t": [True]}, {5: [0]}, [("t", "x")], [("t",)], ["x"])
BY_ANNOTATION: Mapping[str, tuple[Any, ...]] = {
    "int": NUMBER,
    "str": NAME,
    "bool": (0, 1, "true", "", b"x", [], 1.5, "\ud800", None, np.array([True, False])),
    "float": SECONDS,
    "Sequence[str]": NAMES,
    "Collection[str]": NAMES,
    "Sequence[int]": LIST_OF_NUMBERS,
    "Collection[int]": LIST_OF_NUMBERS,
    "PathLike": PATHS,
    "RootLike": PATHS,
    "str | os.PathLike[str]": PATHS,
    "str | os.PathLike[str] | Store": PATHS,
    "Root | Store | str | os.PathLike[str]": PATHS,
    "IsolationLevel": CHOICE,
    "CorruptRecords": CHOICE,
    "Codec": CHOICE,
    "Literal": CHOICE,
    "Mapping[str, object]": CONFIGS,
    "Mapping[str, object | None]": CONFIGS,
    "Mapping[str, str]": (*CONFIGS, {"x": 5}),
    "Mapping[int, int]": (5, "x", ["x"], {"x": 1}, {0: "x"}, {0: None}, {0: 1.5}, {0: True}, {True: 1}, {1.5: 1}),
    "Offsets": (5, "x", ["x"], {"t": 5}, {"t": {"x": 1}}, {"t": {0: "x"}}, {"t": {0: True}}, {5: {0: 1}}),
    "Partitions": PARTITIONS,
    "Mapping[str, Collection[int]]": PARTITIONS,
    "TopicPartition": (5, "x", ("t",), ("t", "x"), ("t", True), ("t", -1)),
    "Mapping[TopicPartition, int]": (5, "x", {"t": 1}, {("t", 0): "x"}, {("t", 0): True}, {("t", True): 1}),
    "bytes | str": (5, 1.5, True, None, ["x"], "\ud800", object()),
    "Iterable[bytes | str]": (5, "x", b"x", [5], [None], ["\ud800"], [True]),
    "Position": ("x", "", 5.5, b"x", True, -5, {0: "x"}, {0: True}, {0: -9}, float("nan"), "\ud800", [5]),
    "AsOf": ("x", "", b"x", 1.5, True, float("nan"), [5], "\ud800", 10**30, -5),
    "str | Sequence[str]": (5, b"x", [5], [None], ["\ud800"], "", [""], "a/b"),
    "str | re.Pattern[str]": (5, b"x", ["x"], "(", "\ud800"),
    **dict.fromkeys(
        ("Limits", "RebalanceListener", "CommitCallback", "WriteOptions", "WriterKey", "TopicState", "GroupMetadata"),
        (5, "x"),
    ),
    "ArrowData": (None, 5, "x", b"x", object(), ["x"]),
    "Say": (None, 5, "x"),
    "Callable[[int], object]": (None, 5, "x"),
    "str | GroupMetadata | Membership | GroupConsumer": (None, 5, b"x", ["x"], "\ud800", ""),
}
"""Invalid values by the annotation of the argument. None is also invalid unless the annotation allows None."""
UNTYPED = ("Any", "<class 'inspect._empty'>", "SparkSession", "Env", "Schemas", "list[SparklogError]")
"""Annotations of arguments that have their own tests, or that accept any value."""
OF_OPTIONS = ("partitioner", "key_serializer", "value_serializer", "acks", "groups")
"""Options with their own types, which are tested in `tests/clients/producer` and `tests/kafka/exporting`."""
SAID_AS = {
    "timeout_ms": "transaction.timeout.ms", "session_timeout_ms": "session.timeout.ms", "keys": "key", "n": "`n`",
    "topics": "topic", "partitions": "partition", "name": "", "transactional_id": "transactional id",
}  # fmt: skip
"""Names of arguments in errors that differ from the argument names."""


def annotation(parameter: inspect.Parameter) -> tuple[str, bool]:
    """Return the annotation of an argument, and whether it may be None."""
    text = str(parameter.annotation).replace("typing.", "").replace("collections.abc.", "")
    text = text if text in UNTYPED else text.removeprefix("<class '").removesuffix("'>")
    required = text.removesuffix(" | None")
    return "Literal" if required.startswith("Literal[") else required, required != text or required == "AsOf"


def contents(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def parts(value: object) -> Iterator[object]:
    """Yield a value and its elements."""
    yield value
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from (*parts(key), *parts(item))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from parts(item)


def answer(call: Callable[..., object], given: dict[str, Any], parameter: inspect.Parameter, wrong: object) -> str:
    """Return a complaint about the response to an invalid argument, or an empty string."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        given = {name: value for name, value in given.items() if name != parameter.name}
        error = outcome(lambda: call(*given.values(), wrong), {})
    else:
        error = outcome(call, {**given, parameter.name: wrong})
    if not isinstance(error, BadRequest) or "\n" in str(error):
        return f"{type(error).__name__}: {error}"
    name = SAID_AS.get(parameter.name, parameter.name)
    if name not in str(error) and parameter.name not in str(error):
        return f"does not name the argument: {error}"
    if not any(shortened(part) in str(error) or str(part) in str(error) for part in parts(wrong)):
        return f"does not name the value: {error}"
    return ""


@pytest.mark.parametrize("name", CALLS)
def test_invalid_argument_is_rejected_by_name_and_nothing_is_written(
    place: Place, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.folder)
    of, right = CALLS[name]
    call, given = of(place), right(place)
    before, wrong = contents(place.folder), []
    for parameter in inspect.signature(call).parameters.values():
        kind, may_be_none = annotation(parameter)
        if kind in UNTYPED or parameter.name in OF_OPTIONS:
            continue
        values = BY_ANNOTATION[kind]
        lacks_none = not may_be_none and all(value is not None for value in values)
        answers = {(parameter.name, repr(value)): answer(call, given, parameter, value) for value in values}
        wrong += [(*key, said) for key, said in answers.items() if said]
        if lacks_none and (said := answer(call, given, parameter, None)):
            wrong.append((parameter.name, "None", said))
    place.close()
    assert wrong == []
    assert contents(place.folder) == before


def test_misspelled_argument_suggests_the_right_one(place: Place) -> None:
    for name, (of, right) in CALLS.items():
        call = of(place)
        for parameter in inspect.signature(call).parameters:
            if len(parameter) > 3 and hasattr(call, "__wrapped__") and not name.startswith(("Producer.send", "read")):
                error = outcome(call, {**right(place), parameter[:-1]: 1})
                assert isinstance(error, BadRequest), (name, parameter)
                assert f"'{parameter[:-1]}'" in str(error), (name, error)
                assert "did you mean" in str(error), (name, error)
    place.close()


def test_numpy_numbers_are_accepted(place: Place) -> None:
    """numpy numbers are handled like Python numbers, whether they are in range or not.

    They are not rejected for their type.
    """
    for name, (of, right) in CALLS.items():
        for parameter in inspect.signature(of(place)).parameters.values():
            if annotation(parameter)[0] not in ("int", "float") or (name, parameter.name) == (
                "Topic.delete",
                "version",
            ):
                continue
            for number in (1, -9):
                if (name, number) in (("Consumer.poll", 1), ("FollowedTable.wait", 1)):
                    continue
                errors = [
                    outcome(of(place), {**right(place), parameter.name: value}) for value in (number, np.int64(number))
                ]
                assert type(errors[0]) is type(errors[1]), (name, parameter.name, errors)
    place.close()


def test_closed_objects_reject_calls(place: Place) -> None:
    producer, consumer = place.producer(), place.consumer("poll")
    transaction = place.transaction()
    producer.close()
    consumer.close()
    transaction.abort()
    for call in (
        lambda: producer.send("t", "v", sequence=1),
        lambda: consumer.poll(),
        lambda: consumer.commit(),
        lambda: consumer.commit_async(),
        lambda: consumer.seek("t", 0, 0),
        lambda: consumer.subscribe("t"),
        lambda: transaction.append("t", DATA),
        lambda: transaction.send_offsets("h", {"t": {0: 1}}),
    ):
        with pytest.raises(BadRequest, match=r"closed|is aborted"):
            call()
    producer.close()
    consumer.close()


def test_valid_arguments_are_accepted(place: Place) -> None:
    fine = (type(None), NotFound, sparklog.Conflict)
    assert [name for name, (of, right) in CALLS.items() if not isinstance(outcome(of(place), right(place)), fine)] == []


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda p: sparklog.open(None), "location must be a path, a URL or a store, found None"),
        (lambda p: sparklog.open(b"/data"), "location must be a path, a URL or a store, found b'/data'"),
        (lambda p: p.topic.scan(partitions=0), "partitions must be a list of integers or None, found 0"),
        (lambda p: p.topic.scan(columns="value"), "columns must be a list of strings, found 'value'; use ['value']"),
        (lambda p: sparklog.compact(p.root, topics="t"), "topics must be a list of strings, found 't'; use ['t']"),
        (lambda p: p.topic.get(5), "key must be bytes or a string, found 5"),
        (lambda p: p.consumer("poll").poll("1"), "timeout must be a non-negative number of seconds, found '1'"),
        (lambda p: p.topic.scan(isolation="read_uncommitted"),
         "scan: got an unexpected keyword argument 'isolation'; did you mean 'isolation_level'?"),
        (lambda p: sparklog.datasets(p.root, isolation="x"), "did you mean 'isolation_level'?"),
        (lambda p: p.topic.get(), "get: missing a required argument: 'key'"),
        (lambda p: p.topic.alter({"retention.ms": 7}),
         "; pass these arguments by name: configs=..., partitions=..., force=..., since=..."),
        (lambda p: p.topic.append({"value": ["a"]}, compression="lz4"),
         "append: got an unexpected keyword argument 'compression'; its arguments are data, options, writer"),
        (lambda p: p.root.topic(5), "name must be a string, found 5"),
        (lambda p: p.root.ensure_topic("t", partitions="3"), "the number of partitions must be 1 to 100000, found '3'"),
        (lambda p: sparklog.consumer(p.root, "g", topics="t.*"),
         "'t.*' is not a topic name: use pattern= to subscribe with a regular expression"),
        (lambda p: sparklog.consumer(p.root, "g", topics=()), "a consumer requires at least one topic, found none"),
        (lambda p: sparklog.WriteOptions(batch_bytes="5"),
         "batch_bytes must be an integer of at least 1, found '5'"),
    ],
)  # fmt: skip
def test_error_messages(place: Place, call: Callable[[Place], object], says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        call(place)
    assert str(refused.value).endswith(says)


def test_topic_that_was_not_opened_is_rejected(place: Place) -> None:
    for opened in (sparklog.datasets(place.root), sparklog.polars(place.root)):
        assert "tt" not in opened
        with pytest.raises(NotFound, match="topic 'tt' was not opened; did you mean 't'"):
            opened["tt"]
        with pytest.raises(NotFound, match="topic 'orders' was not opened; the topics are 't'"):
            opened["orders"]


def test_missing_method_of_a_producer_is_explained(place: Place) -> None:
    producer = sparklog.transactional(place.root, "job")
    with pytest.raises(AttributeError, match=r"append is a method of a transaction: call begin\(\).append"):
        producer.append  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="'TransactionalProducer' object has no attribute 'sned'"):
        producer.sned  # type: ignore[attr-defined]  # noqa: B018


def test_ensure_topic_ignores_another_partition_count_with_a_warning(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(place.root.ensure_topic("t").bounds()) == len(place.root.ensure_topic("t", partitions=9).bounds())
    assert [record.getMessage() for record in caplog.records if record.name == "sparklog.log.topic.root"] == [
        (
            "partitions=9 is ignored, because topic 't' already exists with "
            f"{units.count(len(place.topic.bounds()), 'partition')}"
        )
    ]


def test_numpy_numbers_are_converted(place: Place) -> None:
    one = np.int64(0)
    assert place.topic.scan(partitions=np.array([0]), start=one, keys=iter(["a"])).to_table().num_rows > 0  # type: ignore[arg-type]
    assert place.topic.record_at(np.int32(0), one)["key"][0].as_py() == b"a"  # type: ignore[arg-type]
    assert place.topic.plan_delete_records({one: one}) == {0: 0}  # type: ignore[dict-item]
