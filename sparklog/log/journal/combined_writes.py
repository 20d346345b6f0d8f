"""Combine the steps of several threads into one journal entry, such as the steps of group members in one process.

Each step gets the state that the previous step returned. Each thread gets the error of its own step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from sparklog.errors import SparklogError
from sparklog.log.journal.entry_log import EntryLog, StateEntry, Step
from sparklog.log.journal.group_commit import GroupCommit

E = TypeVar("E", bound=StateEntry)


class CombinedWrites(Generic[E]):
    """Writes entries of a log.

    An entry contains the pending steps of all threads. Steps must be pure: see `EntryLog.write`.
    """

    def __init__(self, log: EntryLog[E]) -> None:
        self._log = log
        self._group: GroupCommit[Step[E], E] = GroupCommit(log.title, self._write_all)

    def write(self, step: Step[E]) -> E:
        """Write an entry, like `EntryLog.write`.

        Raises `Unavailable` if the outcome of the entry, and of all its steps, is unknown.
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
                # The state may not be the latest one. In this case, the log refreshes and calls this function again.
                raise next(iter(errors.values()))
            return latest

        try:
            state = self._log.write(combined)
        except SparklogError as error:
            if all(error is not step_error for step_error in errors.values()):
                raise
            state = self._log.current()
        return [errors.get(index, state) for index in range(len(steps))]
