"""Processes share a group in a directory. Some are killed, some leave, and each record is counted once."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.groups.group_state import GROUPS, GroupState
from sparklog.groups.lag import Groups
from sparklog.log.topic.root import Root, open_root
from tests.groups.simulation.seeds import check_offsets

PARTITIONS = 12
# A member commits the offsets of each poll, with the first offset of each partition as metadata ("processed").
MEMBER = """
import os, sys, time
import numpy as np
import sparklog
from sparklog.groups.group_state import OffsetAndMetadata
root, end, stop = sys.argv[1], sys.argv[2], sys.argv[3]
consumer = sparklog.consumer(
    root, "g", topics="t", auto_offset_reset="earliest", enable_auto_commit=False, session_timeout_ms=4_000,
    heartbeat_interval_ms=200, max_poll_records=50, partition_assignment_strategy=[sys.argv[4]],
)
while not os.path.exists(end) and not os.path.exists(stop):
    offsets = {}
    for batch in consumer.poll(timeout=0.2):
        partitions, numbers = batch.column("partition").to_numpy(), batch.column("offset").to_numpy()
        for partition in np.unique(partitions).tolist():
            mine = numbers[partitions == partition]
            first = offsets[partition].metadata if partition in offsets else str(mine[0])
            offsets[partition] = OffsetAndMetadata(int(mine[-1]) + 1, first)
    if offsets:
        try:
            consumer.commit({"t": offsets})
        except sparklog.Fenced:
            pass
consumer.close(commit=False)
"""


class Members:
    """The processes of a group, and a thread that appends while they read."""

    def __init__(self, folder: Path, assignor: str, seed: int) -> None:
        self.folder = folder
        self.root_folder, self.end = folder / "root", folder / "end"
        self.root: Root = open_root(self.root_folder, create=True)
        self.topic = self.root.create_topic("t", partitions=PARTITIONS)
        self.assignor = assignor
        self.random = random.Random(seed)
        self.running: list[tuple[subprocess.Popen[bytes], Path]] = []
        self.started = 0
        self._appending = True
        self._thread = threading.Thread(target=self._append)
        self._thread.start()

    def _append(self) -> None:
        while self._appending:
            partitions = pa.array([number % PARTITIONS for number in range(60)], pa.int32())
            self.topic.append(pa.table({"value": ["x"] * 60, "partition": partitions}))
            time.sleep(0.1)

    def start(self) -> None:
        self.started += 1
        stop = self.folder / f"stop-{self.started}"
        arguments = [str(self.root_folder), str(self.end), str(stop), self.assignor]
        child = subprocess.Popen([sys.executable, "-c", MEMBER, *arguments], stderr=subprocess.PIPE)
        self.running.append((child, stop))

    def kill(self) -> None:
        child, _ = self.running.pop(self.random.randrange(len(self.running)))
        child.kill()
        child.communicate()

    def leave(self) -> None:
        child, stop = self.running.pop(self.random.randrange(len(self.running)))
        stop.touch()
        _, errors = child.communicate(timeout=120)
        assert child.returncode == 0, errors.decode()

    def committed(self) -> list[int]:
        return [item.offset for _, item in sorted(Groups(self.root).group("g").committed().items())]

    def finish(self, timeout_s: float) -> None:
        """Stop appending, wait until all offsets are committed, and end the members."""
        self._appending = False
        self._thread.join()
        log_end, deadline = self.topic.log.state().log_end.tolist(), time.monotonic() + timeout_s
        while self.committed() != log_end and time.monotonic() < deadline:
            assert all(child.poll() is None for child, _ in self.running), "a member failed"
            time.sleep(0.2)
        self.end.touch()
        for child, _ in self.running:
            _, errors = child.communicate(timeout=120)
            assert child.returncode == 0, errors.decode()
        assert self.committed() == log_end

    def entries(self) -> list[GroupState]:
        store = open_root(self.root_folder).store
        keys = [info.key for info in store.list(f"{GROUPS.prefix('g')}/_log/0")]
        return [GROUPS.decode(store.get(key), key, number) for number, key in enumerate(keys)]


def run(folder: Path, assignor: str, *, processes: int, changes: int, pause_s: tuple[float, float]) -> list[GroupState]:
    """Start members, repeatedly kill a member, let one leave or one more join, and check the entries of the group."""
    members = Members(folder, assignor, seed=processes)
    try:
        for _ in range(processes):
            members.start()
        for _ in range(changes):
            time.sleep(members.random.uniform(*pause_s))
            if len(members.running) > 1:
                members.kill() if members.random.random() < 0.75 else members.leave()
            while len(members.running) < processes and members.random.random() < 0.8:
                members.start()
        if not members.running:
            members.start()
        members.finish(90)
    finally:
        members._appending = False
        for child, _ in members.running:
            child.kill()
    entries = members.entries()
    assert check_offsets(entries)
    return entries


@pytest.mark.sweep
def test_killed_members_count_each_record_once(tmp_path: Path) -> None:
    entries = run(tmp_path, "cooperative-sticky", processes=3, changes=2, pause_s=(2.0, 3.0))
    assert max(len(entry.members) for entry in entries) >= 2


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_eight_processes_and_sixty_kills(tmp_path: Path, assignor: str) -> None:
    """Takes about 20 minutes, half of which are spent on each assignor."""
    entries = run(tmp_path, assignor, processes=8, changes=40, pause_s=(5.0, 20.0))
    assert max(len(entry.members) for entry in entries) >= 6
