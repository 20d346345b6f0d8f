"""Deleting objects as pieces of work, so that many of them are spread over tasks and few are not worth one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sparklog.errors import SparklogError
from sparklog.log.journal.numbered_objects import READ_AHEAD
from sparklog.log.state.commit import MAINTAIN
from sparklog.maintenance.work import Done, InProcess, Progress, Runner, silent
from sparklog.retention.vacuum_plan import Victim
from sparklog.storage.store import Store


CHUNK = 1000
"""Objects of one piece of work: some seconds on an object store, far more than a task costs."""
HERE = 20
"""So many pieces this process does itself: two seconds' work on a local disk, for which no Spark need be started."""


@dataclass(frozen=True)
class DeleteWork:
    """Deletes these keys, in their order where the store answers at once; deleting again what is gone is no error."""

    store: Store
    topic: str
    topic_id: str
    keys: tuple[str, ...]
    op: str = MAINTAIN
    partitions: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        return f"vacuum {self.topic}"

    @property
    def nbytes(self) -> int:
        """Nothing is read: how many are deleted stands for it."""
        return len(self.keys)

    def run(self, progress: Progress = silent) -> Done:
        """Delete them. `Unavailable` at the first that the store refuses; another run deletes the rest."""
        if getattr(self.store, "parallel_reads", 1) > 1:
            with ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="sparklog-delete") as pool:
                for _ in pool.map(self.store.delete, self.keys):
                    pass
        else:
            for key in self.keys:
                self.store.delete(key)
        return Done((), (), ())


def delete_all(
    store: Store, topic: str, topic_id: str, victims: Sequence[Victim], runner: Runner
) -> Iterator[tuple[tuple[Victim, ...], SparklogError | None]]:
    """Delete objects in chunks, several at once where the runner does so; each chunk with the error that ended it.

    Up to `HERE` chunks are deleted here, by this thread.
    """
    chunks = {
        tuple(victim.key for victim in chunk): chunk
        for chunk in (tuple(victims[i : i + CHUNK]) for i in range(0, len(victims), CHUNK))
    }
    works = [DeleteWork(store, topic, topic_id, keys) for keys in chunks]
    chosen: Runner = runner if len(works) > HERE else InProcess()
    for work, result in chosen.run(works):
        if not isinstance(work, DeleteWork):
            continue
        yield chunks[work.keys], result if isinstance(result, SparklogError) else None
