"""Warnings that a process logs only once, or once per minute, because the check that causes them is repeated."""

from __future__ import annotations

from collections.abc import Hashable

REPEAT_MS = 60_000
MAX_REPEATED = 10
"""The maximum number of repeated warnings in `REPEAT_MS`."""
_subjects: set[tuple[Hashable, ...]] = set()
_repeated: dict[tuple[Hashable, ...], int] = {}
"""The subjects of the repeated warnings in the last `REPEAT_MS`, and the times of these warnings."""


def is_first_warning(*subject: Hashable) -> bool:
    """Return whether this process has not yet logged a warning about a subject, and record that it has.

    The first value of a subject is the kind of warning. The other values identify the object of the warning, such as a
    topic.
    """
    if subject in _subjects:
        return False
    _subjects.add(subject)
    return True


def is_due_warning(*subject: Hashable, now_ms: int) -> bool:
    """Return whether a repeated warning about a subject is due, and record that it was logged at this time.

    A warning is due once per subject in `REPEAT_MS`, as long as fewer than `MAX_REPEATED` warnings were logged in
    this time.
    """
    # A copy, because other threads may record warnings at the same time. At worst, they log a warning twice.
    for logged, time_ms in list(_repeated.items()):
        if now_ms - time_ms >= REPEAT_MS:
            _repeated.pop(logged, None)
    if subject in _repeated or len(_repeated) >= MAX_REPEATED:
        return False
    _repeated[subject] = now_ms
    return True


def forget_warnings() -> None:
    """Forget all logged warnings. Tests call this function, so that a test does not depend on earlier tests."""
    _subjects.clear()
    _repeated.clear()
