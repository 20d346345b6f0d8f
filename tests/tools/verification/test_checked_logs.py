"""Logs whose objects are deleted during a read, the readable end, and the position of damage in a document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparklog.errors import Corrupt, NotFound
from sparklog.log.journal.documents import decode, encode
from sparklog.log.journal.stored_object import read_object
from sparklog.storage.memory import MemoryStore
from sparklog.tools.verification.checked_logs import CheckedLog, findings_of, log_end, read_again
from sparklog.tools.verification.findings import LOG, MISSING
from tests.support.small_limits import small_limits

DOCUMENT = encode({"format": 1, "readFeatures": [], "text": "some text that is long enough"})


def failing(times: int) -> Callable[[], CheckedLog]:
    left = [times]

    def read() -> CheckedLog:
        left[0] -= 1
        if left[0] >= 0:
            raise NotFound("t/_log/3")
        return CheckedLog(MemoryStore(lambda: 0), "read", "commit", LOG)

    return read


def unread() -> CheckedLog:
    return CheckedLog(MemoryStore(lambda: 0), "t", "commit", LOG)


def test_log_is_read_again_if_objects_are_deleted() -> None:
    with small_limits(verify_tries=3):
        assert read_again(failing(2), unread()).prefix == "read"
        given_up = read_again(failing(3), unread())
    (finding,) = given_up.findings
    assert (finding.kind, finding.file) == (MISSING, "t/_log")
    assert "t/_log/3" in finding.message


@pytest.mark.parametrize(
    ("numbers", "checkpoint", "end"),
    [
        ([0, 1, 2], -1, 2),
        ([0, 1, 3], -1, 1),
        ([3, 4], 2, 4),
        ([1, 2, 4], 2, 2),
        ([5, 6], -1, 6),  # nothing is below the gap
        ([], 7, 7),
        ([], -1, -1),
    ],
)
def test_readable_end_is_the_first_gap_after_the_checkpoint(numbers: list[int], checkpoint: int, end: int) -> None:
    assert log_end(numbers, checkpoint) == end


def _text(data: bytes, key: str) -> Any:
    return decode(data, key, "object").text("text")


def test_object_is_read_twice_before_damage_is_reported() -> None:
    store, calls = MemoryStore(lambda: 0), [0]
    store.create("k", DOCUMENT)

    def once_damaged(data: bytes, key: str) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise Corrupt("a bit flipped on the way", file=key)
        return _text(data, key)

    stored = read_object(store, "k", once_damaged)
    assert (stored.value, stored.damage, calls[0]) == ("some text that is long enough", None, 2)


@pytest.mark.parametrize("position", [10, 30, 60, len(DOCUMENT) - 4])
def test_position_of_a_flipped_bit_is_reported(position: int) -> None:
    damaged = bytearray(DOCUMENT)
    damaged[position] ^= 1
    store = MemoryStore(lambda: 0)
    store.create("k", bytes(damaged))
    stored = read_object(store, "k", _text)
    assert stored.value is None
    (finding,) = findings_of(LOG, stored)
    # A wrong digit of the checksum cannot be located, so the position of the number is reported.
    digits = DOCUMENT.rfind(b":") + 1
    assert finding.position == (digits if position >= digits else position)
