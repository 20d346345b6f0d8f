"""Chunks of complete lines from a pipe, and parsing of times."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import click
import pytest

from sparklog.cli.commands.produce import line_chunks
from sparklog.console.options import parse_time


def runs_of(data: bytes, run_bytes: int) -> list[bytes]:
    """Return the chunks that are read from a closed pipe with `data`."""
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    try:
        return list(line_chunks(read, chunk_bytes=run_bytes, linger_s=10, clock=time.monotonic))
    finally:
        os.close(read)


@pytest.mark.parametrize("run_bytes", [1, 3, 5, 1000])
@pytest.mark.parametrize("data", [b"", b"a", b"a\n", b"\n\n", b"one\ntwo\nthree", b"a long line without an end" * 9])
def test_chunks_are_complete_lines_without_loss(data: bytes, run_bytes: int) -> None:
    runs = runs_of(data, run_bytes)
    assert b"".join(runs) == data
    assert all(runs)
    assert all(run.endswith(b"\n") for run in runs[:-1])


def test_a_file_is_read_in_chunks_of_the_given_size(tmp_path: Path) -> None:
    data = b"x" * 99 + b"\n"
    path = tmp_path / "lines"
    path.write_bytes(data * 50_000)
    with path.open("rb") as file:
        runs = list(line_chunks(file.fileno(), chunk_bytes=2 << 20, linger_s=10, clock=time.monotonic))
    assert b"".join(runs) == data * 50_000
    assert len(runs) == 3
    assert max(map(len, runs)) < 3 << 20, "a run may exceed its size by one read"


def test_slow_lines_are_returned_after_the_linger() -> None:
    read, write = os.pipe()
    seen: list[bytes] = []
    done = threading.Event()

    def reader() -> None:
        for run in line_chunks(read, chunk_bytes=1 << 20, linger_s=0.02, clock=time.monotonic):
            seen.append(run)
            done.set()

    thread = threading.Thread(target=reader)
    thread.start()
    os.write(write, b"first\nhal")
    assert done.wait(300), "the first line must come while the pipe is open"
    assert seen == [b"first\n"]
    os.write(write, b"f\n")
    os.close(write)
    thread.join()
    os.close(read)
    assert b"".join(seen) == b"first\nhalf\n"


def test_an_interrupt_returns_the_buffered_complete_lines() -> None:
    def interrupt(signal_number: int, frame: object) -> None:
        raise KeyboardInterrupt

    looks: list[float] = []

    def clock() -> float:
        """The clock is read when bytes arrive and when more bytes are awaited. The interrupt arrives at the second
        call.
        """
        looks.append(time.monotonic())
        if len(looks) == 2:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        return looks[-1]

    read, write = os.pipe()
    os.write(write, b"one\ntwo\nthr")
    runs: list[bytes] = []
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            runs.extend(line_chunks(read, chunk_bytes=1 << 20, linger_s=600, clock=clock))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        os.close(read)
        os.close(write)
    assert runs == [b"one\ntwo\n"]


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("2026-01-31T12:00:00", 1_769_860_800_000),
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31T13:00:00+01:00", 1_769_860_800_000),
        ("2026-01-31T12:00:00.123456", 1_769_860_800_123),
        ("2026-01-31", 1_769_817_600_000),
        ("2026-01-31T13:00:00+01", 1_769_860_800_000),
        ("2026-01-31T17:45:00+0545", 1_769_860_800_000),
        ("2026-01-31T12:00:00.5Z", 1_769_860_800_500),
        ("2026-01-31 12:00:00,0079999999", 1_769_860_800_007),
        ("2026-01-31T12Z", 1_769_860_800_000),
    ],
)
def test_a_time_is_milliseconds_or_iso_8601(text: str, millis: int) -> None:
    assert parse_time(text) == millis


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "1960-01-01", "1.5", str(2**63)])
def test_invalid_times_are_errors(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected"):
        parse_time(text)
