"""kcat as a user runs it: it reads what Kafka's consumer read from a broker, and writes, lists and joins a group."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest

from tests.serve.clients import ISOLATIONS, ReadRecord, rows_of
from tests.serve.peers.calls import noting
from tests.serve.peers.golden import Served
from tests.serve.peers.peer import Place

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPICS = (
    "txn-a",
    "txn-b",
    "clean-txn",
    "compacted",
    "expiring",
    "stamped",
    "table",
    "decided",
    "empty",
    "old-v1",
    "seg-empty",
)
KCAT = "kcat"


def kcat(address: object, *arguments: str, stdin: bytes = b"") -> bytes:
    if shutil.which(KCAT) is None:
        pytest.skip("there is no kcat: Debian has it in a package of that name")
    answer = subprocess.run(
        [KCAT, *arguments, "-q", "-b", str(address)], input=stdin, capture_output=True, timeout=60, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert not answer.stderr, answer.stderr
    return answer.stdout


@cache
def release() -> str:
    """Return the name and version of the installed kcat."""
    version = re.search(r"Version (\S+)", kcat("none", "-V").decode())
    return f"kcat-{version[1] if version else ''}"


def printed(records: Sequence[ReadRecord]) -> bytes:
    """Return the output of kcat for these records with the format `FORMAT`."""
    lines = []
    for row in records:
        sizes = [str(-1 if data is None else len(data)) for data in (row.key, row.value)]
        # kcat prints a header value only up to the first zero byte.
        values = [b"NULL" if data is None else data.split(b"\0")[0] for _, data in row.headers]
        names = [name.encode() for name, _ in row.headers]
        headers = b",".join(name + b"=" + value for name, value in zip(names, values, strict=True))
        time_ms = 0 if row.timestamp_type < 0 else row.timestamp
        head = f"{row.offset} {time_ms} {' '.join(sizes)} ".encode()
        lines.append(head + (row.key or b"") + b"|" + (row.value or b"") + b"|" + headers + b"\n")
    return b"".join(lines)


QUICK = ("-X", "fetch.wait.max.ms=50", "-X", "check.crcs=true")
FORMAT = r"%o %T %K %S %k|%s|%h\n"


def test_it_reads_what_kafkas_consumer_read(golden: Served) -> None:
    tasks: list[tuple[Place, str]] = [
        (place, isolation)
        for isolation in ISOLATIONS
        for place in golden.expected[isolation]
        if place[0] in TOPICS or (place[0].startswith("codec-") and isolation == "read_committed")
    ]

    def differs(task: tuple[Place, str]) -> bool:
        (topic, partition), isolation = task
        options = ("-o", "beginning", "-e", *QUICK, "-X", f"isolation.level={isolation}", "-f", FORMAT)
        output = kcat(golden.address, "-C", "-t", topic, "-p", str(partition), *options)
        return output != printed(golden.expected[isolation][topic, partition])

    with noting(release(), golden), ThreadPoolExecutor(4) as threads:
        assert [task for task, wrong in zip(tasks, threads.map(differs, tasks), strict=True) if wrong] == []
    assert len(tasks) > 40


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_it_writes(writable: tuple[Served, Any], codec: str) -> None:
    server, root = writable
    topic = f"kcat-{codec}"
    log = root.create_topic(topic, partitions=2)
    lines = b"".join(b"k%d:v%d\n" % (number, number) for number in range(100))
    with noting(release(), server):
        options = ("-K", ":", "-H", "a=1", "-z", codec, "-X", "enable.idempotence=true")
        kcat(server.address, "-P", "-t", topic, "-p", "1", *options, stdin=lines)
        (offset,) = kcat(server.address, "-Q", "-t", f"{topic}:1:-1").split()[-1:]
        listed = json.loads(kcat(server.address, "-L", "-J", "-t", topic))
        consumed = kcat(server.address, "-G", f"group-{codec}", topic, "-e", "-o", "beginning", *QUICK, "-f", "%k:%s\n")
    records = rows_of(log, 1, "read_committed")
    assert [(row.key, row.value, row.headers) for row in records] == [
        (b"k%d" % number, b"v%d" % number, (("a", b"1"),)) for number in range(100)
    ]
    assert int(offset) == 100
    assert [len(one["partitions"]) for one in listed["topics"] if one["topic"] == topic] == [2]
    assert consumed == lines
