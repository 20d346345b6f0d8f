"""Test views that refresh, plan and read while a thread simulates a broker that appends, rolls, cleans and expires."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

from sparklog.kafka.in_place import KafkaView
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED
from tests.fixture_data import ExpectedRecord
from tests.kafka.logs import batch, marker, offsets, read, segment, write_partition

LOOKS = 60
ENOUGH = 5
AHEAD = 400
"""Maximum number of offsets that the broker is ahead of its reader, so that the amount to read does not depend on its
speed.
"""
CHANGES = 2
"""Number of changes per refresh of the reader. It is below the reader's number of attempts, so slow machines do not
fail.
"""


class Broker(threading.Thread):
    """Writes offsets 0, 1, 2, …: `b"<offset>"`. Every tenth offset is in an aborted transaction, followed by a marker.

    Records below `pin`, the position of the reader, may expire. `left` is the number of further swaps and expiries.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__()
        self.folder, self.chance = folder, random.Random(seed)
        self.bases, self.next = [0], 0
        self.pin = 0
        self.left = 0
        self.stopped = threading.Event()
        self.swaps = self.expired = 0

    def run(self) -> None:
        while not self.stopped.is_set():
            if self.next - self.pin > AHEAD:
                self.stopped.wait(0.001)
                continue
            self.append()
            if self.next - self.bases[-1] > 60:
                self.bases.append(self.next)
                segment(self.folder, self.next).write_bytes(b"")
            if self.left and len(self.bases) > 4 and self.chance.random() < 0.03:
                self.left -= 1
                self.clean()
            if self.left and len(self.bases) > 3 and self.bases[1] <= self.pin and self.chance.random() < 0.02:
                segment(self.folder, self.bases.pop(0)).unlink()
                self.left -= 1
                self.expired += 1

    def append(self) -> None:
        """Append one to three records, or a record of an aborted transaction and its marker, in one to three writes."""
        start = self.next
        if start % 10 == 0:
            data = batch(start, [b"%d" % start], producer=5) + marker(start + 1, 5, commit=False)
            self.next += 2
        else:
            count = min(self.chance.randint(1, 3), 10 - start % 10)
            data = batch(start, [b"%d" % offset for offset in range(start, start + count)])
            self.next += count
        cuts = sorted(self.chance.choices(range(len(data) + 1), k=2))
        with segment(self.folder, self.bases[-1]).open("ab", buffering=0) as out:
            for low, high in zip([0, *cuts], [*cuts, len(data)], strict=True):
                out.write(data[low:high])
                self.stopped.wait(self.chance.choice((0, 0, 0.0005)))

    def clean(self) -> None:
        """Merge the first two segments into one with the same records, in the steps of the cleaner."""
        first, second = self.bases[0], self.bases[1]
        merged = segment(self.folder, first).read_bytes() + segment(self.folder, second).read_bytes()
        name = segment(self.folder, first)
        cleaned, swap = name.with_suffix(".log.cleaned"), name.with_suffix(".log.swap")
        cleaned.write_bytes(merged)
        cleaned.rename(swap)
        for base in (first, second):
            segment(self.folder, base).rename(segment(self.folder, base).with_suffix(".log.deleted"))
        time.sleep(0.002)
        swap.rename(name)
        for base in (first, second):
            segment(self.folder, base).with_suffix(".log.deleted").unlink()
        del self.bases[1]
        self.swaps += 1


def expected(start: int, end: int, isolation: str) -> list[int]:
    hidden = (0, 1) if isolation == READ_COMMITTED else (1,)
    return [offset for offset in range(start, end) if offset % 10 not in hidden]


def test_tailing_reader_sees_every_record_once(tmp_path: Path) -> None:
    broker = Broker(write_partition(tmp_path, "t-0", {0: b""}), seed=5)
    view = KafkaView(tmp_path, tailing=True)
    tailed: list[ExpectedRecord] = []
    looks = 0
    broker.start()
    try:
        began = time.monotonic()
        # Wait until all situations have occurred, also on a slow machine.
        while time.monotonic() - began < 400 and (looks < LOOKS or min(broker.swaps, broker.expired) < ENOUGH):
            broker.left = CHANGES
            view.refresh(["t"])
            bounds = view.bounds("t")[0]
            assert bounds.log_start <= broker.pin <= bounds.last_stable <= bounds.log_end <= broker.next
            start, end = broker.pin, bounds.last_stable
            tailed += read(view, "t", isolation=READ_COMMITTED, start=start, end=end)
            everything = read(KafkaView(tmp_path), "t", isolation=READ_UNCOMMITTED, start=start, end=end)
            assert offsets(everything) == expected(start, end, READ_UNCOMMITTED)
            broker.pin = end
            looks += 1
    finally:
        broker.stopped.set()
        broker.join()
    assert offsets(tailed) == expected(0, broker.pin, READ_COMMITTED)
    assert all(record.value == b"%d" % record.offset for record in tailed)
    assert looks >= LOOKS
    assert min(broker.swaps, broker.expired) >= ENOUGH
    assert len(tailed) > 200
