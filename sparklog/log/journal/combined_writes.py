"""Combine the steps of several threads into one journal entry. For example, the threads are members of a group in one
process.

Each step is called with the state that the previous step returned. If a step raises an error, only its own thread
receives the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from sparklog.errors import SparklogError
from sparklog.log.journal.entry_log import EntryLog, StateEntry, Step
from sparklog.log.journal.group_commit import GroupCommit

E = TypeVar("E", bound=StateEntry)


class CombinedWrites(Generic[E]):
    """Writes the entries of a log. An entry contains the pending steps of all threads. Steps must be pure: see
    `EntryLog.write`.
    """

    def __init__(self, log: EntryLog[E]) -> None:
        self._log = log
        self._group: GroupCommit[Step[E], E] = GroupCommit(log.title, self._write_all)

    def write(self, step: Step[E]) -> E:
        """Write an entry, like `EntryLog.write`.

        Raises `Unavailable` if it is unknown whether the entry, and therefore all of its steps, was written.
        """
        return self._group.submit(step)

    def _write_all(self, steps: Sequence[Step[E]]) -> list[E | SparklogError]:
        errors: dict[int, SparklogError] = {}

        def combined(base: E) -> E | None:
            latest: E | None = None
            errors.clear()
            for index, step in enumerate(steps):
                try:
                    latest = step(base if latest is None else latest) or latest
                except SparklogError as error:
                    errors[index] = error
            if latest is None and errors:
                # If the state is not the latest state, the log refreshes and calls this function again.
                raise next(iter(errors.values()))
            return latest

        try:
            state = self._log.write(combined)
        except SparklogError as error:
            if all(error is not step_error for step_error in errors.values()):
                raise
            state = self._log.current()
        return [errors.get(index, state) for index in range(len(steps))]
