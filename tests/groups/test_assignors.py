"""Assignments, compared with the assignments of Kafka's own assignor classes for random groups (`RandomGroups.java`).

`random_groups.jsonl.xz` contains its output with kafka-clients 4.1.0 for `SEEDS`. `python -m
tests.groups.test_assignors` writes the file again. One test compares the file with a new run, another test runs
thousands of other seeds.
"""

from __future__ import annotations

import json
import lzma
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from sparklog.errors import BadRequest
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.assignors import ASSIGNORS, MemberSubscription, assign
from sparklog.groups.group_members import GroupMember, rebalanced
from tests.kafka_tools import Missing, find_java, kafka_jars

GENERATOR = Path(__file__).with_name("RandomGroups.java")
VECTORS = Path(__file__).with_name("random_groups.jsonl.xz")
# In the groups after the first range, the result depends on the order of Java's hash tables, on partitions that move
# more than once, or on partitions that must move back.
SEEDS = ("0-159", "1032", "1049", "1073", "1102", "1453", "1467", "1564", "2441", "2480", "2991", "4315")
SWEEP = "10000-14999"


def printed_by_kafka(*seeds: str) -> str:
    try:
        java, jars = find_java(), kafka_jars()
    except Missing as missing:
        pytest.skip(str(missing))
    options = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off")
    command = [java, *options, "-cp", f"{jars}{os.sep}*", str(GENERATOR), *seeds]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if "module jdk.compiler" in answer.stderr:
        pytest.skip("the generator is run from its source: that takes a JDK")
    assert answer.returncode == 0, answer.stderr[-2000:]
    return answer.stdout


def stored() -> str:
    return lzma.decompress(VECTORS.read_bytes()).decode()


def member(member_id: str, topics: str, owned: str = "", instance_id: str | None = None) -> MemberSubscription:
    """Return a member. Topics are single letters; `owned` is a string such as `a0 b12`."""
    has = tuple((name[0], int(name[1:])) for name in owned.split())
    return MemberSubscription(member_id, instance_id, tuple(topics), has)


def members_of(group: Mapping[str, Any]) -> list[MemberSubscription]:
    return [
        MemberSubscription(
            one["id"],
            one["instance"],
            tuple(one["topics"]),
            tuple((topic, number) for topic, numbers in one["owned"].items() for number in numbers),
        )
        for one in group["members"]
    ]


def owners(
    shares: Mapping[str, Sequence[TopicPartition]], members: Sequence[MemberSubscription], partitions: Mapping[str, int]
) -> dict[str, list[int]]:
    """Return the index of the member that owns each partition (-1: none), by topic."""
    assert list(shares) == [one.member_id for one in members]
    result = {topic: [-1] * count for topic, count in partitions.items()}
    for index, share in enumerate(shares.values()):
        assert list(share) == sorted(share)
        for topic, number in share:
            assert result[topic][number] == -1, "two members have it"
            result[topic][number] = index
    return result


def first_generation(
    members: Sequence[MemberSubscription], partitions: Mapping[str, int]
) -> dict[str, tuple[TopicPartition, ...]]:
    """Return the partitions that members own before others have revoked theirs, like Kafka's first assignment."""
    joined = [
        GroupMember(one.member_id, None, "c", "h", 1, ("cooperative-sticky",), one.topics, owned=frozenset(one.owned))
        for one in members
    ]
    shares = {item.id: tuple(sorted(item.owned - item.revoked)) for item in rebalanced(joined, partitions)}
    return {one.member_id: shares[one.member_id] for one in members}


def differing(lines: Iterable[str]) -> list[str]:
    """Return the groups that Kafka assigns differently, unless it assigns partitions to members without topics."""
    wrong, count = [], 0
    for line in lines:
        group, count = json.loads(line), count + 1
        members, partitions = members_of(group), group["partitions"]
        idle = {index for index, one in enumerate(members) if not one.topics}
        as_kafka = ASSIGNORS if idle.isdisjoint(chain(*group["sticky"].values())) else ("range", "roundrobin")
        for assignor in as_kafka:
            shares = assign(assignor, members, partitions)
            if assignor == "cooperative-sticky":
                shares = first_generation(members, partitions)
            if owners(shares, members, partitions) != group[assignor]:
                wrong.append(f"{assignor}: {line}")
    assert count
    return wrong


def test_assignors_return_the_assignments_of_kafka() -> None:
    assert differing(stored().splitlines()) == []


@pytest.mark.java
def test_the_stored_assignments_are_from_kafka() -> None:
    assert printed_by_kafka(*SEEDS) == stored()


@pytest.mark.java
@pytest.mark.slow
def test_thousands_of_random_groups_are_assigned_as_in_kafka() -> None:
    assert differing(printed_by_kafka(SWEEP).splitlines()) == []


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_members_without_topics_get_no_partitions(assignor: str) -> None:
    # "a" is the first key in a Java hash table, so Kafka's sticky assignors assign partitions to it.
    members = [member("a", ""), member("b", "t"), member("c", "t")]
    shares = assign(assignor, members, {"t": 5})
    assert shares["a"] == ()
    assert Counter(len(share) for share in shares.values()) == {0: 1, 2: 1, 3: 1}


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_only_existing_topics_with_partitions_are_assigned(assignor: str) -> None:
    members = [member("m", "te"), member("n", "g")]
    assert assign(assignor, members, {"t": 2, "e": 0, "x": 7}) == {"m": (("t", 0), ("t", 1)), "n": ()}
    assert assign(assignor, members, {}) == {"m": (), "n": ()}
    assert assign(assignor, [], {"t": 2}) == {}


@pytest.mark.parametrize("topics", [("t", "t"), ("t", "tu")])
def test_removed_partitions_are_ignored(topics: tuple[str, str]) -> None:
    """Kafka counts removed partitions, and assigns other partitions twice."""
    members = [member("m", topics[0], "t2 t1 g0"), member("n", topics[1])]
    assert assign("sticky", members, {"t": 2}) == {"m": (("t", 1),), "n": (("t", 0),)}


def test_a_partition_that_two_members_claim_has_no_owner() -> None:
    members = [member("m", "t", "t1 t2"), member("n", "t", "t1")]
    assert assign("sticky", members, {"t": 4}) == {"m": (("t", 0), ("t", 2)), "n": (("t", 1), ("t", 3))}


def test_members_move_partitions_in_two_generations() -> None:
    members = [member("m", "t", "t0 t1 t2 t3"), member("n", "t")]
    target = assign("cooperative-sticky", members, {"t": 5})
    assert target == {"m": (("t", 0), ("t", 1), ("t", 2)), "n": (("t", 3), ("t", 4))}
    first = first_generation(members, {"t": 5})
    assert first == {"m": (("t", 0), ("t", 1), ("t", 2)), "n": (("t", 4),)}
    after = [MemberSubscription(one.member_id, None, one.topics, first[one.member_id]) for one in members]
    assert first_generation(after, {"t": 5}) == target


def test_moves_that_undo_each_other_terminate() -> None:
    """Kafka 4.1.0's sticky assignors do not terminate for this group."""
    members = [
        member("c0-8cf4c1", "bc", "b0 b1 b2 b4 b5 c6"),
        member("c1-dfc63c", "f"),
        member("c3-d95ddf", "f"),
        member("c4-cb685d", "bf"),
        member("c5-664ff0", "e"),
        member("c6-6de7d", "a"),
        member("c7-57c1be", "a"),
        member("c9-de5e9c", "ae"),
        member("c11-5d62e1", "abce", "a1 b3 c0 c1 c4 c5 e0"),
        member("c12-dc8ead", "c"),
    ]
    partitions = {"a": 2, "b": 6, "c": 7, "e": 1, "f": 15}
    shares = assign("sticky", members, partitions)
    taken = owners(shares, members, partitions)
    for topic, indexes in taken.items():
        sizes = [len(shares[one.member_id]) for one in members if topic in one.topics]
        assert all(topic in members[index].topics for index in indexes)
        assert max(len(shares[members[index].member_id]) for index in indexes) <= min(sizes) + 1


def test_strings_are_compared_as_in_java() -> None:
    """Strings are compared by UTF-16 code units, so a character with more than 16 bits is less than U+FFFF."""
    members = [member("\uffff", "t"), member("\U0001f600", "t")]
    assert assign("range", members, {"t": 1}) == {"\uffff": (), "\U0001f600": (("t", 0),)}
    assert assign("sticky", members, {"t": 1}) == {"\uffff": (), "\U0001f600": (("t", 0),)}


def test_unknown_assignors_and_duplicate_members_are_rejected() -> None:
    with pytest.raises(BadRequest, match="one of range, roundrobin, sticky, cooperative-sticky, found 'frequency'"):
        assign("frequency", [member("m", "t")], {"t": 1})
    with pytest.raises(BadRequest, match="same member id"):
        assign("range", [member("m", "t"), member("m", "u")], {"t": 1})


if __name__ == "__main__":
    VECTORS.write_bytes(lzma.compress(printed_by_kafka(*SEEDS).encode(), preset=9 | lzma.PRESET_EXTREME))
