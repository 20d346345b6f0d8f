"""The comparison of a root with the ledgers of attempts and acknowledgments."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import sparklog
from tests.torture.jobs import GROWN
from tests.torture.process import World
from tests.torture.readers import (
    COPIERS,
    COPIES,
    SHARERS,
    KeyStates,
    OrderCheck,
    TransactionCheck,
    TransactionView,
    latest_values,
)
from tests.torture.spark_program import BATCH_ROWS, BATCHED, STREAMED
from tests.torture.writers import EXPIRING, LATEST, PLAIN, SEQUENCED, SERVED, identity

Rows = list[tuple[int, int, bytes | None, bytes | None]]
"""Partition, offset, key, value."""


class Counts(Counter[str]):
    """Counts by name."""


def rows_of(root: sparklog.Root, topic: str) -> Rows:
    rows: Rows = []
    for batch in root.topic(topic).scan(columns=["partition", "offset", "key", "value"]):
        rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return rows


def values_of(root: sparklog.Root, topic: str) -> list[bytes]:
    return [value for _, _, _, value in rows_of(root, topic) if value is not None]


def check_root(world: World, counts: Counts) -> Iterator[str]:
    """Compare the root with the ledgers after all roles have ended; yield the differences."""
    root = sparklog.open(world.disk)
    for topic, ledger in ((PLAIN, "plain"), (EXPIRING, "expiring")):
        yield from check_appends(world, root, topic, ledger, counts)
    yield from check_sequences(world, root, counts)
    yield from check_served(world, root, counts)
    yield from check_transactions(world, root, counts)
    yield from check_keys(world, root, counts)
    yield from check_copies(root, counts)
    yield from check_groups(world, root, counts)
    yield from check_grown(root, counts)
    yield from check_spark(world, root, counts)


def check_restored(world: World, folder: Path) -> Iterator[str]:
    """Check a restored root without ledgers: bytes, complete transactions, and copies that match their group."""
    root = sparklog.open(folder)
    yield from check_transactions(world, root, Counts(), complete=False)
    yield from check_copies(root, Counts())
    if findings := sparklog.verify(folder).findings:
        yield f"verify: {[str(finding) for finding in findings]}"


def in_order(topic: str, rows: Rows) -> list[str]:
    """Check that offsets have no gap after the first, with the numbers of each writer in order per partition."""
    check = OrderCheck(topic)
    problems = []
    for partition, offset, _, value in rows:
        check.positions.setdefault(partition, offset)
        problems += check.add(partition, offset, value or b"/0")
    return problems


def check_appends(world: World, root: sparklog.Root, topic: str, ledger: str, counts: Counts) -> Iterator[str]:
    """Check appends: acknowledged records are present once at their offsets, and each append is complete or missing.

    For the topic whose records expire, only records at or after the log starts are checked.
    """
    rows = rows_of(root, topic)
    starts = {partition: bounds.log_start for partition, bounds in root.topic(topic).bounds().items()}
    yield from in_order(topic, rows)
    found = Counter(identity(value) for _, _, _, value in rows if value is not None)
    at = {(partition, offset): identity(value) for partition, offset, _, value in rows if value is not None}
    counts[f"{topic}: records"] += len(rows)
    counts[f"{topic}: doubled"] += sum(number > 1 for number in found.values())
    yield from (f"{topic}: {name} is there {number} times" for name, number in found.items() if number > 1)
    tried: dict[tuple[str, int], int] = {}
    for kind, content in world.entries(ledger):
        if kind == "try":
            tried[content[0], content[1]] = content[2]
        elif kind == "ack":
            writer, first, count, base, end = content
            ends = dict(end)
            places = [(partition, offset) for partition, start in base for offset in range(start, ends[partition])]
            kept = [place for place in places if place[1] >= starts[place[0]]]
            counts[f"{topic}: acknowledged"] += count
            counts[f"{topic}: expired"] += len(places) - len(kept)
            told = {at.get(place) for place in kept}
            expected = {(writer, first + row) for row in range(count)}
            if len(places) != count or not (told <= expected and len(told) == len(kept)):
                counts[f"{topic}: lost"] += len(expected - told)
                yield f"{topic}: {writer} was told {places} for {first} to {first + count - 1}, there: {told}"
            tried.pop((writer, first), None)
    if topic == EXPIRING:
        return
    for (writer, first), count in tried.items():
        there = sum(found[writer, first + row] for row in range(count))
        counts[f"{topic}: unacknowledged appends that landed"] += there > 0
        if there not in (0, count):
            yield f"{topic}: {there} of {count} records of the append {writer}/{first} are there"


def check_sequences(world: World, root: sparklog.Root, counts: Counts) -> Iterator[str]:
    """Check producers with sequences: numbers from 1 to the last, once, in order, and at the acknowledged offsets."""
    rows = rows_of(root, SEQUENCED)
    yield from in_order(SEQUENCED, rows)
    numbers: dict[str, list[int]] = defaultdict(list)
    at = {}
    for partition, offset, _, value in rows:
        writer, number = identity(value or b"/0")
        numbers[writer].append(number)
        at[partition, offset] = writer, number
    counts[f"{SEQUENCED}: records"] += len(rows)
    for writer, found in numbers.items():
        if sorted(found) != list(range(1, len(found) + 1)):
            missing, doubled = set(range(1, max(found))) - set(found), len(found) - len(set(found))
            counts[f"{SEQUENCED}: lost"] += len(missing)
            counts[f"{SEQUENCED}: doubled"] += doubled
            yield f"{SEQUENCED}: of {writer} {sorted(missing)[:20]} are missing and {doubled} are doubled"
        for kind, content in world.entries(writer):
            for row, place in enumerate(content[1] if kind == "ack" else ()):
                counts[f"{SEQUENCED}: acknowledged"] += 1
                if at.get(tuple(place)) != (writer, content[0] + row):
                    yield f"{SEQUENCED}: {writer}/{content[0] + row} was told {place}, there: {at.get(tuple(place))}"


def check_served(world: World, root: sparklog.Root, counts: Counts) -> Iterator[str]:
    """Check records of kafka-python: at most once, in order, and acknowledged ones at the returned offsets."""
    rows = rows_of(root, SERVED)
    yield from in_order(SERVED, rows)
    at = {(partition, offset): identity(value or b"/0") for partition, offset, _, value in rows}
    counts[f"{SERVED}: records"] += len(rows)
    counts[f"{SERVED}: doubled"] += len(at) - len(set(at.values()))
    yield from (f"{SERVED}: {name} is there {n} times" for name, n in Counter(at.values()).items() if n > 1)
    for kind, content in world.entries("kafka-producer"):
        for number, partition, offset in content[1] if kind == "told" else ():
            counts[f"{SERVED}: acknowledged"] += 1
            if at.get((partition, offset)) != (content[0], number):
                counts[f"{SERVED}: lost or elsewhere"] += 1
                yield f"{SERVED}: {content[0]}/{number} was told {partition}-{offset}: {at.get((partition, offset))}"


def check_transactions(world: World, root: sparklog.Root, counts: Counts, *, complete: bool = True) -> Iterator[str]:
    """Check that transactions are complete or missing; with `complete`, that exactly the committed ones are present."""
    values = TransactionView(root).new_values()
    problems = TransactionCheck().look(values)
    counts["transactions: torn"] += len(problems)
    yield from problems
    found = {value.decode().split("/")[0] for rows in values.values() for value in rows}
    counts["transactions: there"] += len(found)
    for kind, content in world.entries("transactor"):
        counts[f"transactions: {kind}"] += kind in ("ack", "abort")
        if kind == "ack" and complete and content[0] not in found:
            counts["transactions: lost"] += 1
            yield f"transaction {content[0]} was acknowledged, and is not there"
        if kind == "abort" and content[0] in found:
            counts["transactions: aborted, and there"] += 1
            yield f"transaction {content[0]} was aborted, and is there"


def check_keys(world: World, root: sparklog.Root, counts: Counts) -> Iterator[str]:
    """Compact the entire log, and check that each key has one record with the latest value."""
    states = KeyStates()
    states.take(world.entries("keyed"))
    before = latest_values(root)
    for report in sparklog.compact(root, topics=[LATEST], roll=True):
        yield from (f"compaction of {report.topic}: {failure}" for failure in report.failures)
    latest = latest_values(root)
    counts[f"{LATEST}: keys"] += len(latest)
    counts[f"{LATEST}: records after compaction"] += len(rows_of(root, LATEST))
    if before != latest:
        yield f"{LATEST}: compaction changed the latest values: {before.items() ^ latest.items()}"
    found = Counter(key for _, _, key, _ in rows_of(root, LATEST))
    yield from (f"{LATEST}: key {key!r} has {n} records after compaction" for key, n in found.items() if n > 1)
    yield from states.problems(states.acknowledged, latest)


def check_copies(root: sparklog.Root, counts: Counts) -> Iterator[str]:
    """Check that copies equal the input up to the committed offsets of the group, partition by partition."""
    sources: dict[int, list[tuple[bytes | None, bytes | None]]] = defaultdict(list)
    copies: dict[int, list[tuple[bytes | None, bytes | None]]] = defaultdict(list)
    committed = sparklog.Groups(root).group(COPIERS).committed()
    ends = {partition: each.offset for (topic, partition), each in committed.items() if topic == SEQUENCED}
    for partition, offset, key, value in rows_of(root, SEQUENCED):
        if offset < ends.get(partition, 0):
            sources[partition].append((key, value))
    for partition, _, key, value in rows_of(root, COPIES):
        copies[partition].append((key, value))
    counts[f"{COPIES}: records"] += sum(len(rows) for rows in copies.values())
    for partition in sources.keys() | copies.keys():
        if sources[partition] != copies[partition]:
            lost = Counter(sources[partition]) - Counter(copies[partition])
            more = Counter(copies[partition]) - Counter(sources[partition])
            counts[f"{COPIES}: lost"] += sum(lost.values())
            counts[f"{COPIES}: doubled"] += sum(more.values())
            yield f"{COPIES}-{partition}: {sum(lost.values())} lost, {sum(more.values())} too many, or out of order"


def check_groups(world: World, root: sparklog.Root, counts: Counts) -> Iterator[str]:
    """Check that members have read all records below the committed offsets of their group."""
    for group, ledger, topic in ((SHARERS, "sharer", PLAIN), ("kafka-readers", "kafka-reader", SERVED)):
        read: dict[int, set[int]] = defaultdict(set)
        for kind, content in world.entries(ledger):
            for partition, first, end in content[0] if kind == "read" else ():
                read[partition].update(range(first, end))
        for (name, place), each in sparklog.Groups(root).group(group).committed().items():
            if name == topic:
                unread = set(range(each.offset)) - read[place]
                counts[f"{group}: committed"] += each.offset
                counts[f"{group}: never read"] += len(unread)
                if unread:
                    yield f"{group}: {sorted(unread)[:20]} of {topic}-{place} were committed and never read"


def check_grown(root: sparklog.Root, counts: Counts) -> Iterator[str]:
    """Check the copy with more partitions: each record once, and the records of each key in order."""
    sources: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    copies: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    for topic, values in ((SEQUENCED, sources), (GROWN, copies)):
        for _, _, key, value in rows_of(root, topic):
            values[key].append(value)
    counts[f"{GROWN}: records"] += sum(len(rows) for rows in copies.values())
    for key in sources.keys() | copies.keys():
        if sources[key] != copies[key]:
            yield f"{GROWN}: key {key!r} has {len(copies[key])} records in place of {len(sources[key])}, or other order"


def check_spark(world: World, root: sparklog.Root, counts: Counts) -> Iterator[str]:
    """Check that the streaming query has written its input once, and that batch appends are complete and unique."""
    if not any(True for _ in world.entries("spark")):
        return
    want = Counter(values_of(root, PLAIN)) + Counter(values_of(root, SEQUENCED))
    found: Counter[bytes] = Counter()
    for topic in STREAMED:
        found += Counter(values_of(root, topic))
    lost, more = want - found, found - want
    counts["streamed: records"] += sum(found.values())
    counts["streamed: lost"] += sum(lost.values())
    counts["streamed: doubled"] += sum(more.values())
    if lost or more:
        yield f"streamed: {sum(lost.values())} lost, {list(lost)[:5]}; {sum(more.values())} doubled, {list(more)[:5]}"
    batches = Counter(value.rpartition(b"/")[0] for value in values_of(root, BATCHED))
    yield from (f"{BATCHED}: {name!r} has {rows} records" for name, rows in batches.items() if rows != BATCH_ROWS)
    for kind, content in world.entries("spark"):
        if kind == "ack":
            counts[f"{BATCHED}: acknowledged"] += 1
            if not batches[f"batch-{content[0]}".encode()]:
                counts[f"{BATCHED}: lost"] += 1
                yield f"{BATCHED}: batch {content[0]} is lost"
