"""Tests that need a separate process: pipes, interrupts, the environment and imports."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.cli.conftest import Sparklog

Process = Callable[..., "subprocess.Popen[bytes]"]


def finished(process: subprocess.Popen[bytes], stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    out, err = process.communicate(stdin, timeout=300)
    return process.returncode, out, err


def test_lines_from_a_pipe_and_back_byte_for_byte(sparklog: Sparklog, process: Process) -> None:
    sparklog("topics", "create", "t")
    code, out, err = finished(process("produce", "t"), b"one\n\xff\xfe two\n\nlast")
    assert (code, out, err) == (0, b"", b"Appended 4 records to t\n")
    assert finished(process("consume", "t"))[1] == b"one\n\xff\xfe two\n\nlast\n"


def test_empty_input_appends_nothing(sparklog: Sparklog, process: Process) -> None:
    sparklog("topics", "create", "t")
    assert finished(process("produce", "t")) == (0, b"", b"Appended 0 records to t\n")
    assert sparklog("offsets", "t").lines == ["t:0:0"]


def test_lines_are_appended_while_the_pipe_is_open(sparklog: Sparklog, process: Process) -> None:
    sparklog("topics", "create", "t")
    producer = process("produce", "t")
    assert producer.stdin is not None
    producer.stdin.write(b"first\n")
    producer.stdin.flush()
    deadline = time.monotonic() + 300
    while sparklog("offsets", "t").lines != ["t:0:1"]:
        assert time.monotonic() < deadline, "the line was not appended"
        time.sleep(0.1)
    assert finished(producer, b"second\n") == (0, b"", b"Appended 2 records to t\n")


def test_lines_of_an_open_pipe_are_appended_within_the_linger(sparklog: Sparklog, process: Process) -> None:
    sparklog("topics", "create", "old")
    producer = process("produce", "new", "--num-partitions", "3", "--linger-ms", "20")
    assert producer.stdin is not None
    for count in range(1, 4):
        producer.stdin.write(b"line\n")
        producer.stdin.flush()
        deadline = time.monotonic() + 300
        while count == 1 and sparklog("topics", "list").lines != ["new", "old"]:
            assert time.monotonic() < deadline, "the topic was not created"
            time.sleep(0.1)
        while sum(int(line.split(":")[2]) for line in sparklog("offsets", "new").lines) < count:
            assert time.monotonic() < deadline, "the line was not appended"
            time.sleep(0.1)
    assert finished(producer) == (0, b"", b"Appended 3 records to new\n")
    assert len(sparklog("offsets", "new").lines) == 3


def test_a_closed_output_pipe_is_not_an_error(sparklog: Sparklog, process: Process) -> None:
    sparklog("topics", "create", "t")
    finished(process("produce", "t"), b"a line that fills the pipe\n" * 200_000)
    consumer = process("consume", "t")
    assert consumer.stdout is not None
    assert consumer.stdout.readline() == b"a line that fills the pipe\n"
    consumer.stdout.close()
    assert consumer.stderr is not None
    assert consumer.stderr.read() == b""
    assert consumer.wait(300) == 0


def test_an_interrupt_stops_follow(sparklog: Sparklog, process: Process) -> None:
    sparklog("topics", "create", "t")
    finished(process("produce", "t"), b"v\n")
    follower = process("consume", "t", "--follow", "--from-beginning")
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"v\n"
    follower.send_signal(signal.SIGINT)
    code, _, err = finished(follower)
    stays = b"nothing was changed except the committed offsets of the group"
    assert (code, err) == (130, b"sparklog: interrupted: processed a total of 1 messages; " + stays + b"\n")


def test_an_error_is_one_line_and_the_exit_code(process: Process) -> None:
    code, out, err = finished(process("consume", "t"))
    assert (code, out) == (1, b"")
    assert err.startswith(b"sparklog: There is no log at ")
    assert err.count(b"\n") == 1


@pytest.mark.parametrize(
    "command",
    [["--help"], ["produce"], ["consume"], ["offsets"], *(["topics", name] for name in ("create", "list", "describe"))],
)
def test_help_has_an_example_or_the_exit_codes(sparklog: Sparklog, command: list[str]) -> None:
    text = sparklog(*command, "-h").out
    assert (
        f"Example:\n    sparklog {' '.join(command)}" in text or "Exit codes: 0 success" in text or "| sparklog" in text
    )
