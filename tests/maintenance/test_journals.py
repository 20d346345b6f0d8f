"""All kinds of journals are verified, repaired, deleted and distinguished from topics by one list of kinds."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.log.journal.entry_log import EntryKind
from sparklog.log.journal.names import checkpoint_key, commit_key
from sparklog.log.topic.root import Root
from sparklog.maintenance.journals import JOURNAL_IN, JOURNALS
from sparklog.maintenance.work_items import Settings
from sparklog.opening import NOTHING, resolve
from sparklog.retention.retain import retain_root
from sparklog.storage.local import LocalStore
from sparklog.testing.world import DAY_MS, World
from sparklog.tools.repair.run import repair_root
from sparklog.tools.verification.findings import CHECKPOINT
from sparklog.tools.verification.run import verify_root

ENTRIES = 8
STATES: dict[str, dict[str, object]] = {"group": {"op": "alter"}, "decision": {"op": "init", "epoch": 0}}
"""Attributes of a valid state, for the kinds whose empty state is not valid."""
EVERY_KIND = pytest.mark.parametrize("kind", JOURNALS, ids=lambda kind: kind.noun)


def world_with(kind: EntryKind[Any], world: World | None = None) -> tuple[World, Root]:
    """Return a root with a journal of this kind whose entries all have copies."""
    world = world or World()
    root = world.root()
    # The journal of table runs is deleted if its topic does not exist.
    root.create_topic("x")
    log = root.engine.entries(kind, "x")
    for _ in range(ENTRIES):
        log.write(lambda state: replace(state, **STATES.get(kind.noun, {})))
        log.write_checkpoint()
    return world, root


def test_journals_contains_all_kinds() -> None:
    names = [module.name for module in pkgutil.walk_packages(sparklog.__path__, "sparklog.")]
    modules = [importlib.import_module(name) for name in names if name.startswith(("sparklog.log", "sparklog.groups"))]
    modules += [importlib.import_module(name) for name in names if name.startswith("sparklog.maintenance")]
    kinds = {id(value): value for module in modules for value in vars(module).values() if isinstance(value, EntryKind)}
    assert kinds.keys() == set(map(id, JOURNALS))
    assert len(JOURNAL_IN) == len({kind.noun for kind in JOURNALS}) == len(JOURNALS)


@EVERY_KIND
def test_damaged_entry_is_reported_and_repaired(kind: EntryKind[Any]) -> None:
    world, _ = world_with(kind)
    before = verify_root(world.store, env=world.env())
    assert (before.findings, before.unreferenced, before.foreign, before.counts.entries) == ((), (), (), ENTRIES)
    key = commit_key(kind.prefix("x"), 4)
    data = world.store.get(key)
    world.store.delete(key)
    world.store.create(key, data[:40] + bytes([data[40] ^ 1]) + data[41:])
    findings = verify_root(world.store, env=world.env()).findings
    assert [(item.kind, item.file, item.position) for item in findings] == [
        (kind.noun, key, 40),
        (CHECKPOINT, checkpoint_key(kind.prefix("x"), 4), None),
    ]
    assert repair_root(world.store, execute=True, env=world.env()).sound
    assert world.store.get(key) == data


@EVERY_KIND
def test_retain_deletes_old_entries(kind: EntryKind[Any]) -> None:
    world, root = world_with(kind)
    world.now_ms += 9 * DAY_MS
    reports = retain_root(root, Settings(now_ms=world.now_ms))
    assert [failure for report in reports for failure in report.failures] == []
    removed = [item for report in reports if report.vacuum is not None for item in report.vacuum.removed]
    deleted = sum(item.objects for item in removed if item.kind == kind.old_entry)
    assert (deleted > 0) == (kind.old_entry is not None)
    entry, copy = commit_key(kind.prefix("x"), 0), checkpoint_key(kind.prefix("x"), ENTRIES - 1)
    assert (world.store.stat(entry) is None) == (kind.old_entry is not None)
    assert world.store.stat(copy) is not None


@EVERY_KIND
def test_directory_of_a_journal_is_not_a_topic(kind: EntryKind[Any], tmp_path: Path) -> None:
    world_with(kind, World(LocalStore(tmp_path, durable=False)))
    assert resolve(str(tmp_path / kind.folder)).kind == NOTHING
    assert resolve(str(tmp_path / "_schemas")).topic == "_schemas"
