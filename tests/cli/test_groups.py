"""`sparklog groups`: the tables of Kafka's tool, dry runs of resets, and rejected options."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as library
from sparklog.errors import Fenced
from sparklog.groups.group_state import OffsetAndMetadata
from sparklog.groups.lag import Groups
from sparklog.groups.membership import Membership
from sparklog.transactions.producer import transactional
from tests.cli.conftest import Sparklog

OFFSETS = ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "SECONDS-BEHIND", "CONSUMER-ID"]


@pytest.fixture
def member(root: Path) -> Membership:
    """Topic a with 3 and 1 records, group `billing` at offsets 2 and 1 without members, and an active group `audit`."""
    opened = library.open(root, create=True)
    topic = opened.create_topic("a", partitions=2)
    topic.append(pa.table({"value": [b"x"] * 4, "partition": pa.array([0, 0, 0, 1], pa.int32())}))
    left = Groups(opened).group("billing").join("one")
    left.commit({"a": {0: OffsetAndMetadata(2, "batch 7"), 1: 1}})
    left.leave()
    active = Groups(opened).group("audit").join("two")
    active.commit({"a": {1: 0}})
    return active


def committed(root: Path, group: str) -> dict[tuple[str, int], int]:
    return {place: item.offset for place, item in Groups(root).group(group).committed().items()}


def test_list_shows_groups_and_optionally_their_states(sparklog: Sparklog, member: Membership) -> None:
    assert sparklog("groups", "list").lines == ["audit", "billing"]
    assert json.loads(sparklog("groups", "list", "--json").out) == ["audit", "billing"]
    heading, *rows = [line.split() for line in sparklog("groups", "list", "--state").lines]
    assert heading == ["GROUP", "STATE", "GENERATION", "CONSUMER-ID", "SESSION-TIMEOUT-MS", "PENDING", "#MEMBERS"]
    assert rows == [
        ["audit", "Stable", "1", "two", "45000", "0", "1"],
        ["billing", "Empty", "1", "-", "45000", "0", "0"],
    ]


def test_describe_shows_offsets_and_lag(sparklog: Sparklog, member: Membership) -> None:
    found = sparklog("groups", "describe", "billing")
    heading, first, second = [line.split() for line in found.lines]
    assert heading == OFFSETS
    assert (first[:6], second) == (
        ["billing", "a", "0", "2", "3", "1"],
        ["billing", "a", "1", "1", "1", "0", "0.0", "-"],
    )
    assert float(first[6]) >= 0
    assert found.err == "Consumer group 'billing' has no active members.\n"
    rows = [line.split() for line in sparklog("groups", "describe", "--all-groups").lines[1:]]
    # As in Kafka's tool, partitions without an offset are shown for an active group.
    assert [row[:6] for row in rows[:2]] == [["audit", "a", "0", "-", "3", "-"], ["audit", "a", "1", "0", "1", "1"]]
    assert len(rows) == 4
    as_json = json.loads(sparklog("groups", "describe", "billing", "--json").out)
    assert [(row["partition"], row["currentOffset"], row["logEnd"], row["lag"]) for row in as_json] == [
        (0, 2, 3, 1),
        (1, 1, 1, 0),
    ]
    state = json.loads(sparklog("groups", "describe", "billing", "--state", "--json").out)
    assert [(item["id"], item["state"], item["instance"]) for item in state] == [("billing", "Empty", None)]


def test_pending_offsets_are_not_shown_as_committed(sparklog: Sparklog, root: Path, member: Membership) -> None:
    transaction = transactional(root, "etl").begin()
    transaction.send_offsets("fresh", {"a": {0: 3}})
    transaction.prepare()
    assert sparklog("groups", "list", "--state").lines[-1].split() == ["fresh", "Empty", "0", "-", "-", "1", "0"]
    assert [line.split() for line in sparklog("groups", "describe", "fresh").lines] == [OFFSETS]
    transaction.commit()
    assert sparklog("groups", "describe", "fresh").lines[1].split()[:6] == ["fresh", "a", "0", "3", "3", "0"]


def test_reset_is_a_dry_run_without_execute(sparklog: Sparklog, root: Path, member: Membership) -> None:
    found = sparklog("groups", "reset", "billing", "--to-earliest", "--all-topics")
    assert [line.split() for line in found.lines] == [
        ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET"],
        ["billing", "a", "0", "2", "0"],
        ["billing", "a", "1", "1", "0"],
    ]
    assert found.err == "WARN Nothing was changed, because this was a dry run. Add --execute to make the changes.\n"
    assert committed(root, "billing") == {("a", 0): 2, ("a", 1): 1}
    assert sparklog("groups", "reset", "billing", "--to-earliest", "--dry-run").err == ""
    sparklog("groups", "reset", "billing", "--to-earliest", "--topic", "a:1", "--execute")
    assert committed(root, "billing") == {("a", 0): 2, ("a", 1): 0}
    shifted = sparklog("groups", "reset", "billing", "--shift-by", "-9", "--topic", "a:0", "--execute", "--json")
    assert json.loads(shifted.out)["offsets"][0]["new"] == 0
    assert shifted.err.startswith("WARN New offset (-7) is lower than the earliest offset")
    assert committed(root, "billing") == {("a", 0): 0, ("a", 1): 0}
    sparklog("groups", "reset", "billing", "--to-datetime", "2100-01-01", "--execute")
    assert committed(root, "billing") == {("a", 0): 3, ("a", 1): 1}
    sparklog("groups", "reset", "billing", "--by-duration", "P1D", "--execute")
    assert committed(root, "billing") == {("a", 0): 0, ("a", 1): 0}


def test_exported_offsets_can_be_restored_from_a_file(
    sparklog: Sparklog, root: Path, member: Membership, tmp_path: Path
) -> None:
    kept = tmp_path / "offsets.csv"
    kept.write_text(sparklog("groups", "reset", "billing", "--to-current", "--export", "--dry-run").out)
    assert kept.read_text() == "a,0,2\na,1,1\n"
    sparklog("groups", "reset", "billing", "--to-latest", "--execute")
    sparklog("groups", "reset", "billing", "--from-file", kept, "--execute")
    assert committed(root, "billing") == {("a", 0): 2, ("a", 1): 1}
    kept.write_text("other,a,0,1\n")
    outcome = sparklog("groups", "reset", "billing", "--from-file", kept, code=1)
    assert (
        outcome.err
        == f"sparklog: {kept} contains offsets for other, but not for group 'billing' [SPARKLOG_BAD_REQUEST]\n"
    )


def test_reset_and_delete_reject_an_active_group(sparklog: Sparklog, root: Path, member: Membership) -> None:
    for command in (
        ("reset", "audit", "--to-latest"),
        ("reset", "audit", "--to-latest", "--execute"),
        ("delete", "audit"),
        ("delete-offsets", "audit", "--topic", "a"),
    ):
        outcome = sparklog("groups", *command, code=1)
        assert outcome.err.startswith("sparklog: group 'audit' is active (Stable, member two): stop its consumer")
        assert outcome.err.count("\n") == 1
    assert committed(root, "audit") == {("a", 1): 0}


def test_a_reset_with_force_warns_and_stops_the_consumer(sparklog: Sparklog, root: Path, member: Membership) -> None:
    force = ("groups", "reset", "audit", "--to-latest", "--force")
    planned, warning = sparklog(*force).err.splitlines()
    assert "its consumer two would stop with SPARKLOG_FENCED" in planned
    assert warning.startswith("WARN Nothing was changed")
    assert committed(root, "audit") == {("a", 1): 0}
    (warned,) = sparklog(*force, "--execute").err.splitlines()
    assert warned.startswith("WARN Group 'audit' is active: its consumer two stops with SPARKLOG_FENCED at its next")
    assert committed(root, "audit") == {("a", 1): 1}
    with pytest.raises(Fenced):
        member.commit({"a": {1: 0}})
    assert sparklog(*force, "--execute").err == ""


def test_members_are_shown_as_in_kafkas_tool(sparklog: Sparklog, root: Path, member: Membership) -> None:
    dynamic = library.consumer(root, "shop", topics="a", client_id="till")
    dynamic.poll()
    described = ("groups", "describe", "--group", "shop", "--members")
    heading, row = [line.split() for line in sparklog(*described).lines]
    assert heading == ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    assert row == ["shop", dynamic.group_metadata().member_id, socket.gethostname(), "till", "2"]
    heading, row = [line.split(maxsplit=5) for line in sparklog(*described, "--verbose").lines]
    # As in Kafka 4.1, the target assignment differs during a rebalance.
    assert heading[5].split() == ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
    assert row[5].split() == ["1", "a:0,1", "1", "a:0,1"]
    (document,) = json.loads(sparklog(*described, "--json").out)
    assert (document["clientId"], document["assignment"]) == ("till", {"a": [0, 1]})
    states = json.loads(sparklog("groups", "describe", "shop", "--state", "--json").out)
    assert states[0]["members"][0]["assignment"] == {"a": [0, 1]}
    assert sparklog("groups", "describe", "shop", "--state").lines[1].split()[1::5] == ["Stable", "1"]
    second = library.consumer(root, "shop", topics="a", client_id="desk")
    desk, till = [line.split() for line in sparklog(*described, "--verbose").lines[1:]]
    assert (desk[4:], till[4:6], till[7]) == (["0", "2", "-", "2", desk[8]], ["2", "1"], "2")
    assert sorted((desk[8], till[8])) == ["a:0", "a:1"]
    second.close()
    forced = sparklog("groups", "reset", "--group", "shop", "-t", "a", "--to-latest", "--force", "--execute").err
    assert forced.startswith("WARN Group 'shop' is active: its member continues from these offsets")
    with pytest.raises(Fenced):
        dynamic.commit({"a": {0: 1}})
    dynamic.poll()
    assert dynamic.position("a", 0) == 3
    dynamic.close()
    static = library.consumer(root, "shop", topics="a", group_instance_id="till-1", client_id="till")
    heading, row = [line.split() for line in sparklog(*described).lines]
    assert (heading[2], row[2]) == ("GROUP-INSTANCE-ID", "till-1")
    static.close()
    empty = sparklog(*described)
    assert (len(empty.lines), empty.err) == (1, "Consumer group 'shop' has no active members.\n")
    # A query owns all partitions, and only its name is shown.
    assert sparklog("groups", "describe", "audit", "--members").lines[1].split() == ["audit", "two", "-", "-", "-"]
    sparklog("groups", "describe", "shop", "--verbose", code=2)
    sparklog("groups", "delete", "shop", "--group", "other", code=2)
    sparklog("groups", "delete", code=2)
    assert sparklog("groups", "delete", "-g", "shop").out == "Deleted group shop.\n"


def test_delete_offsets_and_delete_group(sparklog: Sparklog, root: Path, member: Membership) -> None:
    assert sparklog("groups", "delete", "billing", "--dry-run").out == "Would delete group billing.\n"
    planned = json.loads(sparklog("groups", "delete-offsets", "billing", "--topic", "a:0", "--dry-run", "--json").out)
    assert planned == {"group": "billing", "deleted": {"a": [0]}, "dryRun": True}
    rows = [line.split() for line in sparklog("groups", "delete-offsets", "billing", "--topic", "a:0").lines]
    assert rows == [["TOPIC", "PARTITION", "STATUS"], ["a", "0", "Successful"]]
    assert committed(root, "billing") == {("a", 1): 1}
    missing = sparklog("groups", "delete-offsets", "billing", "--topic", "a:0", code=1)
    assert "group 'billing' has no committed offsets for partitions 0 of topic 'a'" in missing.err
    assert sparklog("groups", "delete", "billing").out == "Deleted group billing.\n"
    assert sparklog("groups", "list").lines == ["audit"]
    assert "group 'billing' does not exist" in sparklog("groups", "delete", "billing", code=1).err
    assert "group 'billing' does not exist" in sparklog("groups", "describe", "billing", code=1).err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("reset", "billing"), "specify exactly one of --to-earliest"),
        (("reset", "billing", "--to-earliest", "--to-offset", "3"), "found 2"),
        (("reset", "billing", "--to-earliest", "--execute", "--dry-run"), "specify --execute or --dry-run, not both"),
        (("reset", "billing", "--to-earliest", "--topic", "a:x"), "expected TOPIC or TOPIC:0,1, found 'a:x'"),
        (("reset", "billing", "--to-earliest", "--topic", "a", "--all-topics"), "specify --all-topics or --topic"),
        (("describe",), "specify group names, or --all-groups"),
        (("delete-offsets", "billing"), "specify at least one --topic"),
    ],
)
def test_wrong_usage_is_reported(
    sparklog: Sparklog, member: Membership, arguments: tuple[str, ...], complaint: str
) -> None:
    assert complaint in sparklog("groups", *arguments, code=2).err


def test_a_kafka_directory_is_read_in_place(fixtures: Path, sparklog: Sparklog) -> None:
    place = ("--root", fixtures / "transactions" / "data")
    names = ["g-admin", "g-classic", "g-consumer", "g-tx"]
    assert sparklog("groups", "list", *place).lines == names
    heading, *rows = [line.split() for line in sparklog("groups", "list", "--state", *place).lines]
    assert [(row[0], row[1], row[3]) for row in rows] == [(name, "Unknown", "-") for name in names]
    heading, *rows = [line.split() for line in sparklog("groups", "describe", "g-classic", *place).lines]
    assert heading == OFFSETS
    assert [row[:6] for row in rows] == [
        ["g-classic", "txn-a", "0", "62", "75", "13"],
        ["g-classic", "txn-a", "1", "35", "35", "0"],
        ["g-classic", "txn-b", "0", "32", "105", "73"],
        ["g-classic", "txn-b", "1", "19", "26", "7"],
    ]
    found = json.loads(sparklog("groups", "describe", "--all-groups", "--json", *place).out)
    assert {item["group"] for item in found} == set(names)
    assert "group 'nope' does not exist in" in sparklog("groups", "describe", "nope", *place, code=1).err


@pytest.mark.parametrize(
    "arguments",
    [
        ("delete", "g-tx"),
        ("reset", "g-tx", "--to-earliest", "--all-topics"),
        ("delete-offsets", "g-tx", "--topic", "txn-a"),
    ],
)
def test_groups_of_a_kafka_directory_are_read_only(
    fixtures: Path, sparklog: Sparklog, arguments: tuple[str, ...]
) -> None:
    outcome = sparklog("groups", *arguments, "--root", fixtures / "transactions" / "data", code=1)
    assert "which is read-only: use kafka-consumer-groups, or import the directory first" in outcome.err
    assert outcome.err.count("\n") == 1


def test_history_shows_operations_and_changed_offsets(sparklog: Sparklog, member: Membership) -> None:
    sparklog("groups", "reset", "billing", "--to-offset", 1, "--topic", "a", "--execute")
    heading, *lines = sparklog("groups", "history", "billing").lines
    assert heading.split() == ["ENTRY", "TIME", "OPERATION", "GENERATION", "#MEMBERS", "OFFSETS"]
    cells = [line.split(maxsplit=5) for line in lines]
    assert [(int(entry), operation, offsets) for entry, _, operation, _, _, offsets in cells] == [
        (3, "alter", "a-0: 2 -> 1"),
        (2, "leave", "-"),
        (1, "commit", "a-0: - -> 2, a-1: - -> 1"),
        (0, "join", "-"),
    ]
    assert [members for *_, members, _ in cells] == ["0", "0", "1", "1"]
    newest, before = json.loads(sparklog("groups", "history", "billing", "--limit", 2, "--json").out)
    assert newest["offsets"] == [["a", 0, 2, 1]]
    assert before["operation"] == "leave"
    assert "does not exist" in sparklog("groups", "history", "none", code=1).err


def test_messages_about_the_kafka_clients_of_a_server(sparklog: Sparklog, root: Path, member: Membership) -> None:
    served = Groups(library.open(root)).group("served").own("serve@10.0.0.7:9092", assignors=("range",))
    served.commit({"a": {0: 2}})
    described = sparklog("groups", "describe", "served", "--members")
    assert described.lines[-1].split()[:2] == ["served", "serve@10.0.0.7:9092"]
    assert described.err.startswith("The members of consumer group 'served' are Kafka clients of server 10.0.0.7:9092")
    assert "kafka-consumer-groups --bootstrap-server 10.0.0.7:9092 --describe --members" in described.err
    assert sparklog("groups", "describe", "audit", "--members").err == ""
    reset = ("groups", "reset", "served", "--all-topics", "--to-earliest")
    assert (
        "is active (Stable, Kafka clients of server 10.0.0.7:9092): stop these clients"
        in sparklog(*reset, "--execute", code=1).err
    )
    for options, verb in (((), "would rejoin and continue"), (("--execute",), "rejoin and continue")):
        forced = sparklog(*reset, "--force", *options).err
        assert f"the Kafka clients of server 10.0.0.7:9092 {verb} from these offsets." in forced
    with pytest.raises(Fenced):
        served.commit({"a": {0: 3}})
    assert committed(root, "served") == {("a", 0): 0}
