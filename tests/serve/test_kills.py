"""Servers that are killed under a producer and a group: each record is there once, in order, and is read."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import sparklog
from tests.serve.test_groups import Member, free_port, members, wait_for

KILLS = int(os.environ.get("SPARKLOG_SERVE_KILLS", "20"))
UP_SECONDS = 2.0


def start(root: Path, ports: list[int]) -> subprocess.Popen[str]:
    """Start a server on the first port, and wait until it listens."""
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    command = [sys.executable, "-m", "sparklog", "serve", str(root), "--writable", "--advertise", addresses]
    process = subprocess.Popen([*command, "--listen", addresses.partition(",")[0]], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("serving")
    return process


class Sender(threading.Thread):
    """Sends numbers until it is stopped; `acknowledged` are those that the server has answered for."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__(daemon=True)
        self.addresses, self.stopped = addresses, threading.Event()
        self.acknowledged: list[int] = []
        self.failed: list[Any] = []
        self.start()

    def run(self) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=self.addresses,
            enable_idempotence=True,
            request_timeout_ms=5_000,
            delivery_timeout_ms=300_000,
            retry_backoff_ms=50,
            reconnect_backoff_ms=50,
            reconnect_backoff_max_ms=200,
            metadata_max_age_ms=1_000,
        )
        number = 0
        while not self.stopped.is_set():
            future = producer.send("t", b"%d" % number, partition=0)
            future.add_callback(lambda _, number=number: self.acknowledged.append(number))
            future.add_errback(self.failed.append)
            number += 1
            time.sleep(0.005)
        producer.flush(120)
        producer.close()


@pytest.mark.slow
@pytest.mark.sweep
def test_each_record_is_there_once_after_kills(tmp_path: Path) -> None:
    topic = sparklog.open(tmp_path, create=True).create_topic("t")
    ports = [free_port(), free_port()]
    servers = [start(tmp_path, ports), start(tmp_path, ports[::-1])]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    sender = Sender(addresses)
    try:
        with members(Member(",".join(addresses), client_id="reader", reconnect_backoff_max_ms=200)) as (reader,):
            for kill in range(KILLS):
                time.sleep(UP_SECONDS)
                turn = kill % 2
                servers[turn].kill()
                servers[turn].wait()
                servers[turn] = start(tmp_path, ports if turn == 0 else ports[::-1])
            sender.stopped.set()
            sender.join(150)
            assert not sender.failed
            values = [int(value) for value in topic.scan().to_table()["value"].to_pylist()]
            assert values == list(range(len(values)))
            assert sorted(sender.acknowledged) == values
            # A member that was stopped before its commit reads again; nothing is left out.
            wait_for(lambda: {int(value) for value in reader.values} == set(values), 60)
    finally:
        for server in servers:
            server.kill()
            server.wait()
