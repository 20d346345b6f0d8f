"""Snapshot and recovery: keep balances in a compacted topic, and resume from them after a kill."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession
from running import append, read, start

import sparklog


class Killed(Exception):  # noqa: N818
    """Simulates a kill. Nothing is closed, committed or aborted afterwards."""


def restore(root: str) -> dict[str, int]:
    """Return the latest balance of each account in the topic. A null value deletes the account."""
    state: dict[str, int] = {}
    for batch in sparklog.open(root).topic("balances").scan(columns=["key", "value"]):
        for row in batch.to_pylist():
            account = row["key"].decode()
            if row["value"] is None:
                state.pop(account, None)
            else:
                state[account] = int(row["value"])
    return state


def keep_balances(root: str, die_after: int | None = None) -> str:
    """Add up all payments, and commit balances and offsets together. Simulate a kill after `die_after` polls."""
    sparklog.open(root).ensure_topic("balances", configs={"cleanup.policy": "compact"})
    consumer = sparklog.consumer(
        root,
        "balances",
        topics="payments",
        group_instance_id="balances",  # the next run takes over the partitions immediately and fences this run
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=2,
    )
    producer = sparklog.transactional(root, "balances")
    state = restore(root)  # read the state after joining the group, when an older run can no longer commit
    lines = [f"begins with {state} at offset {consumer.position('payments', 0)}"]
    while batches := consumer.poll():
        changed = {}
        for row in (row for batch in batches for row in batch.to_pylist()):
            account = row["key"].decode()
            changed[account] = state[account] = state.get(account, 0) + int(row["value"])
        transaction = producer.begin()
        values = [None if balance == 0 else str(balance) for balance in changed.values()]
        transaction.append("balances", pa.table({"key": list(changed), "value": pa.array(values, pa.string())}))
        if die_after == 0:
            raise Killed("\n".join([*lines, f"killed while it writes {changed}"]))
        transaction.send_offsets(consumer)
        transaction.commit()
        lines.append(f"wrote {changed}")
        die_after = None if die_after is None else die_after - 1
    consumer.close()
    return "\n".join(lines)


def main(spark: SparkSession, folder: str) -> str:
    root = f"{folder}/log"
    payments = [("anna", "50", "10:00"), ("ben", "20", "10:01"), ("anna", "-30", "10:02"), ("ben", "-20", "10:03")]
    append(root, "payments", payments)
    lines = ["first run:"]
    try:
        keep_balances(root, die_after=1)
    except Killed as killed:
        lines.append(str(killed))
    lines += ["second run:", keep_balances(root)]

    append(root, "payments", [("carl", "70", "10:04")])
    sparklog.compact(root, topics=["balances"], roll=True)
    lines += ["third run, after compaction:", keep_balances(root)]
    return "\n".join([*lines, "balances:", *read(root, "balances")])


if __name__ == "__main__":
    start(main)
