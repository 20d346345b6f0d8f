"""The tables of docs/reference/format*.md hold the code's names, in the code's order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sparklog.format.slice_columns import COLUMN_TYPES
from sparklog.groups.group_members import MEMBER_JSON
from sparklog.groups.group_state import GROUP_JSON, GROUP_OPS, OFFSETS_JSON, PENDING_JSON
from sparklog.limits import DEFAULTS
from sparklog.log.decisions.decision import (
    COMMITTED_JSON,
    DECISION_JSON,
    DECISION_OPS,
    PREPARED_GROUP_JSON,
    PREPARED_JSON,
    REASONS,
)
from sparklog.log.journal.documents import FORMAT, KNOWN_READ_FEATURES, KNOWN_WRITE_FEATURES, Document
from sparklog.log.journal.names import ROOT_JSON
from sparklog.log.journal.probe_results import LOST_JSON, PROBE_RESULT_JSON
from sparklog.log.state.checkpoint import CHECKPOINT_JSON, COLUMN_NAMES, TABLE_REF_JSON
from sparklog.log.state.commit import (
    COMMIT_JSON,
    EDIT_JSON,
    FILE_JSON,
    OPS,
    REMOVAL_JSON,
    RESOLVED_JSON,
    TXN_JSON,
    VERSION_LEASE_JSON,
    WRITER_JSON,
)
from sparklog.log.state.kafka_source import KAFKA_ENDED_JSON, KAFKA_OPEN_JSON, KAFKA_SOURCE_JSON
from sparklog.log.state.root_defaults import DEFAULTS_JSON, PATTERN_JSON
from sparklog.log.state.slice_table import ABORTED, COMMITTED, OPEN, PLAIN
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.topic_state import PREPARE_JSON, TOPIC_STATE_JSON
from sparklog.log.state.writer_runs import ENTRY_JSON
from sparklog.log.topic.backup_manifest import ENTRIES_JSON, LEFT_OUT_JSON, MANIFEST_JSON, REPOSITORY_JSON, TOPIC_JSON
from sparklog.maintenance.leases import CLAIM_JSON, CLAIM_OPS, LEASE_JSON, LEASE_MS
from sparklog.tools.backup.restoring import RESTORE_JSON

PAGES = sorted((Path(__file__).parents[3] / "docs" / "reference").glob("format*.md"))
TEXT = "\n".join(page.read_text() for page in PAGES)


def tables() -> dict[str, list[list[str]]]:
    """Tables by their heading (and first column): the rows' cells."""
    found: dict[str, list[list[str]]] = {}
    heading, rows = "", None
    for line in TEXT.splitlines():
        if line.startswith("#"):
            heading, rows = line.lstrip("# "), None
        elif line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if rows is None:
                rows = found.setdefault(f"{heading}: {cells[0]}", [])
            elif not set(cells[0]) <= {"-", ":"}:
                rows.append(cells)
        else:
            rows = None
    return found


def names(table: str) -> list[str]:
    return [re.sub("`", "", row[0]) for row in tables()[table]]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("`_root.json`: member", ROOT_JSON),
        ("`_probe/verdict-<hash>.json`: member", PROBE_RESULT_JSON),
        ("`_probe/lost-<hash>.json`: member", LOST_JSON),
        ("Commits: member", COMMIT_JSON),
        ("A file in `files`: member", FILE_JSON),
        ("The other objects: in `writer`", WRITER_JSON),
        ("The other objects: in `remove`, per file", REMOVAL_JSON),
        ("The other objects: in `edits`", EDIT_JSON),
        ("The other objects: in `txn`", TXN_JSON),
        ("The other objects: in `resolved`", RESOLVED_JSON),
        ("The other objects: in `kafkaOpen`", KAFKA_OPEN_JSON),
        ("The other objects: in `kafkaEnded`", KAFKA_ENDED_JSON),
        ("The other objects: in `kafkaSource`", KAFKA_SOURCE_JSON),
        ("The other objects: in `holds`", VERSION_LEASE_JSON),
        ("Checkpoints: member of the head", CHECKPOINT_JSON),
        ("Checkpoints: in `head`", TOPIC_STATE_JSON),
        ("Checkpoints: in `open`", PREPARE_JSON),
        ("Checkpoints: in `registry`", ENTRY_JSON),
        ("Checkpoints: in `table`", TABLE_REF_JSON),
        ("Decisions of transactions: member of an entry", DECISION_JSON),
        ("Decisions of transactions: in `prepared` and `prepares`", PREPARED_JSON),
        ("Decisions of transactions: in `commits`", COMMITTED_JSON),
        ("Decisions of transactions: in `preparedGroups` and `groups`", PREPARED_GROUP_JSON),
        ("Offsets of consumer groups: member of an entry", GROUP_JSON),
        ("Offsets of consumer groups: in `offsets`", OFFSETS_JSON),
        ("Offsets of consumer groups: in `pending`", PENDING_JSON),
        ("Offsets of consumer groups: in `members`", MEMBER_JSON),
        ("Leases of jobs: member of an entry", LEASE_JSON),
        ("Leases of jobs: in `claims`", CLAIM_JSON),
        ("Defaults of a root: member of an entry", DEFAULTS_JSON),
        ("Defaults of a root: in `patterns`", PATTERN_JSON),
        ("Backups: member of `_backup.json`", REPOSITORY_JSON),
        ("Backups: member of a backup", MANIFEST_JSON),
        ("Backups: in `topics`", TOPIC_JSON),
        ("Backups: in `decisions`, `groups` and `defaults`", ENTRIES_JSON),
        ("Backups: in `leftOut`", LEFT_OUT_JSON),
        ("Backups: member of `_restore.json`", RESTORE_JSON),
        ("The slice table: column", tuple(COLUMN_NAMES.values())),
    ],
)
def test_tables_hold_the_codes_names(table: str, expected: Document[Any] | tuple[str, ...]) -> None:
    assert names(table) == list(expected.names if isinstance(expected, Document) else expected)


def test_types_of_the_slice_table() -> None:
    documented = {re.sub("`", "", row[0]): row[1] for row in tables()["The slice table: column"]}
    for name, dtype in COLUMN_TYPES.items():
        expected = "dictionary of text" if name in ("file", "txn") else dtype
        assert documented[COLUMN_NAMES[name]] == expected


def test_ops_flags_statuses_and_format() -> None:
    rows = {re.sub("`", "", row[0]): row[-1] for row in tables()["Commits: member"]}
    assert tuple(re.findall(r"`([a-z-]+)`", rows["op"].split(";")[0])) == OPS
    assert rows["format"] == str(FORMAT)
    flags = {re.sub("`", "", row[0]): row[-1] for row in tables()["A file in `files`: member"]}["flags"]
    assert [int(number) for number in re.findall(r"(\d+): ", flags)] == [flag.value for flag in SliceFlag if flag]
    status = {re.sub("`", "", row[0]): row[-1] for row in tables()["The slice table: column"]}["status"]
    assert status == f"{PLAIN} plain, {OPEN} open, {COMMITTED} committed, {ABORTED} aborted"
    assert ("No features exist so far." in TEXT) == (not KNOWN_READ_FEATURES and not KNOWN_WRITE_FEATURES)


def test_decisions_and_groups() -> None:
    rows = {re.sub("`", "", row[0]): row[-1] for row in tables()["Decisions of transactions: member of an entry"]}
    assert tuple(re.findall(r"`([a-z-]+)`", rows["op"].split(":")[0])) == DECISION_OPS
    assert tuple(re.findall(r"`([a-z-]+)`", rows["reason"])) == REASONS
    rows = {re.sub("`", "", row[0]): row[-1] for row in tables()["Offsets of consumer groups: member of an entry"]}
    assert tuple(re.findall(r"`([a-z-]+)`", rows["op"])) == GROUP_OPS
    rows = {re.sub("`", "", row[0]): row[-1] for row in tables()["Leases of jobs: member of an entry"]}
    assert tuple(re.findall(r"`([a-z-]+)`", rows["op"])) == CLAIM_OPS
    assert LEASE_MS == 5 * 60_000
    assert "five minutes after it was renewed" in TEXT
    assert (
        f"when {DEFAULTS.checkpoint_entries} have come since the last copy, or {DEFAULTS.checkpoint_bytes >> 20} MiB"
        in TEXT
    )
