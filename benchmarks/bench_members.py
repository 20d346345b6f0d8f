"""100 members on 1,000 partitions: seconds from the last join until every member owns what it is given, and all know.

Run: `python -m benchmarks members [disk] [bucket] [--members N] [--partitions N] [--processes N] [--folder PATH]`.

On a disk members are threads of several processes. In the bucket, simulated with the latencies of S3 Standard, they are
threads of one process that opened the root as often. Members join within two seconds. `entries` are those of the group.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import tempfile
import threading
import time
from collections.abc import Callable
from queue import Queue
from typing import Any

from sparklog.groups.group import Group
from sparklog.groups.membership import JoinRequest
from sparklog.log.topic.root import Root, open_root
from sparklog.storage.memory import MemoryStore
from sparklog.testing.slow_store import S3_STANDARD, SlowStore

JOIN_WITHIN_S = 2.0
GIVE_UP_S = 120.0


def member(
    root: Root, args: argparse.Namespace, seed: int, report: Callable[[tuple[float, float, int, int]], None]
) -> None:
    """Join at some moment, and look until all members are settled; report both times, entries, partitions."""
    time.sleep(random.Random(seed).random() * JOIN_WITHIN_S)
    membership = Group(root, "g").share(JoinRequest(topics=("t",)), {"t": args.partitions})
    joined = time.monotonic()
    while time.monotonic() - joined < GIVE_UP_S:
        membership.heartbeat_if_due()
        membership.refresh()
        if membership.revoking():
            membership.revoke()
        members = membership.state.members
        if len(members) == args.members and all(item.is_stable for item in members):
            break
        time.sleep(args.look_s)
    report((joined, time.monotonic(), membership.state.number + 1, len(membership.assigned())))


def members(root: Root, args: argparse.Namespace, seeds: range, report: Callable[[Any], None]) -> None:
    threads = [threading.Thread(target=member, args=(root, args, seed, report)) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def process(location: str, args: argparse.Namespace, seeds: range, start: Any, reports: Any) -> None:
    root = open_root(location)
    start.wait()
    members(root, args, seeds, reports.put)


def shares(args: argparse.Namespace) -> list[range]:
    each = args.members // args.processes
    return [range(first, first + each) for first in range(0, args.members, each)]


def on_disk(args: argparse.Namespace) -> list[Any]:
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        open_root(folder, create=True).create_topic("t", partitions=args.partitions)
        context = multiprocessing.get_context("spawn")
        start, reports = context.Event(), context.Queue()
        children = [
            context.Process(target=process, args=(folder, args, seeds, start, reports)) for seeds in shares(args)
        ]
        for child in children:
            child.start()
        time.sleep(5)
        start.set()
        rows = [reports.get() for _ in range(args.members)]
        for child in children:
            child.join()
        return rows


def in_bucket(args: argparse.Namespace) -> list[Any]:
    memory = MemoryStore(lambda: time.time_ns() // 1_000_000)
    open_root(memory, create=True).create_topic("t", partitions=args.partitions)
    reports: Queue[Any] = Queue()
    threads = []
    for number, seeds in enumerate(shares(args)):
        store = SlowStore(memory, S3_STANDARD, random.Random(number))
        threads.append(threading.Thread(target=members, args=(open_root(store), args, seeds, reports.put)))
    for thread in threads:
        thread.start()
    return [reports.get() for _ in range(args.members)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=["disk", "bucket", []])
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--folder")
    args = parser.parse_args()
    for part, run, look_s in (("disk", on_disk, 0.1), ("bucket", in_bucket, 1.0)):
        if args.parts and part not in args.parts:
            continue
        args.look_s = look_s
        rows = run(args)
        last = max(joined for joined, *_ in rows)
        stable = max(settled for _, settled, *_ in rows) - last
        owned = [partitions for *_, partitions in rows]
        print(
            f"{part}: {args.members} members on {args.partitions} partitions, {args.processes} processes: stable "
            f"{stable:.2f} s after the last join; entries {max(row[2] for row in rows)}; partitions of a member "
            f"{min(owned)} to {max(owned)}"
        )


if __name__ == "__main__":
    main()
