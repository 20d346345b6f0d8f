"""The tables in docs/reference/format*.md contain the names in the code, in the same order."""

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
from sparklog.log.state.commit import OPS
from sparklog.log.state.commit_json import (
    COMMIT_JSON,
    EDIT_JSON,
    FILE_JSON,
    REMOVED_SLICES_JSON,
    TXN_DECISION_JSON,
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
from sparklog.log.topic.backup_manifest import (
    DAMAGED_JOURNAL_JSON,
    ENTRIES_JSON,
    MANIFEST_JSON,
    REPOSITORY_JSON,
    TOPIC_JSON,
)
from sparklog.maintenance.leases import CLAIM_JSON, CLAIM_OPS, LEASE_JSON, LEASE_MS
from sparklog.maintenance.table_runs import TABLE_RUN_JSON
from sparklog.tools.backup.restoring import RESTORE_JSON

PAGES = sorted((Path(__file__).parents[3] / "docs" / "reference").glob("format*.md"))
TEXT = "\n".join(page.read_text() for page in PAGES)


def tables() -> dict[str, list[list[str]]]:
    """Return the cells of the rows of each table, by heading (and first column)."""
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
        ("`_root.json`: Field", ROOT_JSON),
        ("`_probe/verdict-<hash>.json`: Field", PROBE_RESULT_JSON),
        ("`_probe/lost-<hash>.json`: Field", LOST_JSON),
        ("Commits: Field", COMMIT_JSON),
        ("A file in `files`: Field", FILE_JSON),
        ("Nested objects: In `writer`", WRITER_JSON),
        ("Nested objects: In `remove`, per file", REMOVED_SLICES_JSON),
        ("Nested objects: In `edits`", EDIT_JSON),
        ("Nested objects: In `txn`", TXN_JSON),
        ("Nested objects: In `resolved`", TXN_DECISION_JSON),
        ("Nested objects: In `kafkaOpen`", KAFKA_OPEN_JSON),
        ("Nested objects: In `kafkaEnded`", KAFKA_ENDED_JSON),
        ("Nested objects: In `kafkaSource`", KAFKA_SOURCE_JSON),
        ("Nested objects: In `holds`", VERSION_LEASE_JSON),
        ("Checkpoints: Field of the header", CHECKPOINT_JSON),
        ("Checkpoints: In `head`", TOPIC_STATE_JSON),
        ("Checkpoints: In `open`", PREPARE_JSON),
        ("Checkpoints: In `registry`", ENTRY_JSON),
        ("Checkpoints: In `table`", TABLE_REF_JSON),
        ("Transaction decisions: Field of an entry", DECISION_JSON),
        ("Transaction decisions: In `prepared` and `prepares`", PREPARED_JSON),
        ("Transaction decisions: In `commits`", COMMITTED_JSON),
        ("Transaction decisions: In `preparedGroups` and `groups`", PREPARED_GROUP_JSON),
        ("Consumer groups: Field of an entry", GROUP_JSON),
        ("Consumer groups: In `offsets`", OFFSETS_JSON),
        ("Consumer groups: In `pending`", PENDING_JSON),
        ("Consumer groups: In `members`", MEMBER_JSON),
        ("Job leases: Field of an entry", LEASE_JSON),
        ("Job leases: In `claims`", CLAIM_JSON),
        ("Table runs: In `runs` of a topic", TABLE_RUN_JSON),
        ("Root defaults: Field of an entry", DEFAULTS_JSON),
        ("Root defaults: In `patterns`", PATTERN_JSON),
        ("Backups: Field of `_backup.json`", REPOSITORY_JSON),
        ("Backups: Field of a backup", MANIFEST_JSON),
        ("Backups: In `topics`", TOPIC_JSON),
        ("Backups: In `decisions`, `groups` and `defaults`", ENTRIES_JSON),
        ("Backups: In `leftOut`", DAMAGED_JOURNAL_JSON),
        ("Restores: Field of `_restore.json`", RESTORE_JSON),
        ("The slice table: Column", tuple(COLUMN_NAMES.values())),
    ],
)
def test_tables_contain_the_names_in_the_code(table: str, expected: Document[Any] | tuple[str, ...]) -> None:
    assert names(table) == list(expected.names if isinstance(expected, Document) else expected)


def test_types_of_the_slice_table() -> None:
    documented = {re.sub("`", "", row[0]): row[1] for row in tables()["The slice table: Column"]}
    for name, dtype in COLUMN_TYPES.items():
        expected = "dictionary of string" if name in ("file", "txn") else dtype
        assert documented[COLUMN_NAMES[name]] == expected


def test_ops_flags_statuses_and_format() -> None:
    rows = {re.sub("`", "", row[0]): row[-1] for row in tables()["Commits: Field"]}
    assert tuple(re.findall(r"`([a-z-]+)`", rows["op"].split(";")[0])) == OPS
    assert rows["format"] == str(FORMAT)
    flags = {re.sub("`", "", row[0]): row[-1] for row in tables()["A file in `files`: Field"]}["flags"]
    assert [int(number) for number in re.findall(r"(\d+): ", flags)] == [flag.value for flag in SliceFlag if flag]
    status = {re.sub("`", "", row[0]): row[-1] for row in tables()["The slice table: Column"]}["status"]
    assert status == f"{PLAIN} plain, {OPEN} open, {COMMITTED} committed, {ABORTED} aborted"
    assert ("No features exist so far." in TEXT) == (not KNOWN_READ_FEATURES and not KNOWN_WRITE_FEATURES)


def test_decisions_and_groups() -> None:
    rows = {re.sub("`", "", row[0]): row[-1] for row in tables()["Transaction decisions: Field of an entry"]}
    assert tuple(re.findall(r"`([a-z-]+)`", rows["op"].split(":")[0])) == DECISION_OPS
    assert tuple(re.findall(r"`([a-z-]+)`", rows["reason"])) == REASONS
    rows = {re.sub("`", "", row[0]): row[-1] for row in tables()["Consumer groups: Field of an entry"]}
    assert tuple(re.findall(r"`([a-z-]+)`", rows["op"])) == GROUP_OPS
    rows = {re.sub("`", "", row[0]): row[-1] for row in tables()["Job leases: Field of an entry"]}
    assert tuple(re.findall(r"`([a-z-]+)`", rows["op"])) == CLAIM_OPS
    assert LEASE_MS == 5 * 60_000
    unwrapped = " ".join(TEXT.split())
    assert "five minutes after its last renewal" in unwrapped
    assert f"{DEFAULTS.checkpoint_entries} entries or {DEFAULTS.checkpoint_bytes >> 20} MiB" in unwrapped
