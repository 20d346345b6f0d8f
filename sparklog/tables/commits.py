"""Commits of an interval of offsets to a table, exactly once.

**Several runs and other writers.** A commit is based on the version of the table that was loaded before the interval
was read, and fails if another commit came first. The table is then loaded again:

* If the watermark has not changed, the other commit came from another program, such as a compaction of the table. The
  same rows are committed again, based on the new version.
* If the watermark has changed, another run has copied the interval. The files of this run are deleted, and the copy
  continues from the new watermark.

**Lost responses.** If the outcome of a commit is unknown, the table is also loaded again:

* If the watermark contains the id of the commit, the commit was successful.
* If the watermark has not changed, the commit may still be in flight. The same rows are committed again. Each of the
  two commits requires that the version on which it is based is the current version. If both are based on the same
  version, only one of them can succeed. If the second commit is based on a later version, the first commit can no
  longer succeed, or at least not after the second commit. The same argument applies if a run is killed while its commit
  is in flight and another run commits an interval.
* If the watermark has changed and contains another id, another run has committed. The copy continues from the new
  watermark. It does not delete its files, because its own commit may precede that of the other run. If it does not, the
  files are unreferenced files, which the maintenance of the table deletes.
"""

from __future__ import annotations

from collections.abc import Callable

from sparklog.errors import Conflict, NotFound, SparklogError, Unavailable
from sparklog.log.journal.clocks import Env
from sparklog.storage.retries import Backoff
from sparklog.tables.target import TableState, TargetTable
from sparklog.tables.watermark import Watermark

RETRY_MS = 600_000
"""Maximum time for attempts to commit an interval, and for attempts to load the table."""


def load_when_available(target: TargetTable, env: Env) -> TableState | None:
    """Load the current version of a table, if it exists. Retry while its catalog is unavailable."""
    backoff = Backoff(env, RETRY_MS)
    while True:
        try:
            return target.load()
        except Unavailable as error:
            if error.is_denied or not backoff.wait():
                raise


def load_again(target: TargetTable, env: Env) -> TableState:
    """Load the current version of a table that exists. Retry while its catalog is unavailable."""
    state = load_when_available(target, env)
    if state is None:
        raise NotFound(f"table {target.name} was deleted while a topic was copied to it")
    return state


def commit_interval(
    target: TargetTable,
    base: TableState,
    watermark: Watermark,
    commit: Callable[[TableState], None],
    discard: Callable[[], None],
    env: Env,
) -> bool:
    """Commit rows and the watermark after them. Return True if the table contains the commit, or False if the interval
    must be copied again from the current version of the table.

    Args:
        target: The table.
        base: The version from whose watermark the interval was read, and for which its files were written.
        watermark: The watermark after the interval.
        commit: A function that commits the rows and the watermark, based on a version.
        discard: A function that deletes the files of the rows. It is called if no commit can contain them.
        env: The environment.
    """
    state, is_committed, is_unknown = base, False, False
    failure: SparklogError
    backoff = Backoff(env, RETRY_MS)
    try:
        while True:
            was_unknown, is_unknown = is_unknown, True
            try:
                commit(state)
                is_committed = True
                return True
            except Unavailable as error:
                is_unknown = was_unknown or error.is_unknown
                if error.is_denied:
                    raise
                failure = error
            except Conflict as error:
                is_unknown = was_unknown
                failure = error
            except SparklogError:
                is_unknown = was_unknown
                raise
            state = load_again(target, env)
            if state.watermark is not None and state.watermark.commit_id == watermark.commit_id:
                is_committed = True
                return True
            is_same_layout = (state.schema, state.partitioning) == (base.schema, base.partitioning)
            if state.watermark != base.watermark or not is_same_layout:
                return False
            if not backoff.wait():
                if isinstance(failure, Conflict):
                    attempts = f"{backoff.tries + 1} attempts to commit to table {target.name} failed"
                    raise Conflict(f"{attempts}: {failure}; run the copy again")
                raise failure
    finally:
        if not (is_committed or is_unknown):
            discard()
