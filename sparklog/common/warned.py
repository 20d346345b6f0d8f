"""Warnings that a process logs only once, because the check that causes them is repeated."""

from __future__ import annotations

from collections.abc import Hashable

_subjects: set[tuple[Hashable, ...]] = set()


def is_first_warning(*subject: Hashable) -> bool:
    """Return whether this process has not yet logged a warning about a subject, and record that it has.

    The first value of a subject is the kind of warning. The other values identify the object of the warning, such as a
    topic.
    """
    if subject in _subjects:
        return False
    _subjects.add(subject)
    return True


def forget_warnings() -> None:
    """Forget all logged warnings. Tests call this function, so that a test does not depend on earlier tests."""
    _subjects.clear()
