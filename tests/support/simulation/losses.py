"""Objects of journals that are lost while a simulation runs, and put back before it is judged.

Whatever was acknowledged meanwhile must fit: a write into a gap keeps the lost object from coming back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sparklog.log.journal.names import LOG_FOLDER, entry_number
from sparklog.storage.memory import MemoryStore
from tests.support.simulation.scheduler import Actor, SimulatedWorld, SimulationError

YOUNG_MS = 15_000
"""What is younger is not lost: a process that has a journal open looks every ten seconds for what is lost."""


@dataclass
class Losses:
    """The lost objects of a run by key."""

    world: SimulatedWorld
    lost: dict[str, bytes] = field(default_factory=dict)

    def loser(self, count: int, pause_s: float) -> Callable[[Actor], None]:
        """Return an actor that loses so many entries and checkpoints, never the newest one listed: without a trace."""

        def body(actor: Actor) -> None:
            assert isinstance(self.world.store, MemoryStore)
            for _ in range(count):
                actor.sleep(actor.random.random() * pause_s)
                if keys := self.candidates():
                    key = actor.random.choice(keys)
                    self.lost[key] = self.world.store.get(key)
                    # What watches the store would take it for the vacuum.
                    MemoryStore.delete(self.world.store, key)
                    actor.note(f"LOST {key}")

        return body

    def candidates(self) -> list[str]:
        newest: dict[str, int] = {}
        keys = []
        # A bucket lists some entries late. Until it lists a later one, the loss leaves no trace there either.
        for info in self.world.shared.list(""):
            prefix, folder, name = info.key.rpartition(f"/{LOG_FOLDER}/")
            if not folder:
                continue
            number = entry_number(name)
            if number is not None and "/" not in name:
                newest[prefix] = max(number, newest.get(prefix, -1))
            if self.world.now_ms - info.modified_ms > YOUNG_MS:
                keys.append(info.key)
        own = {f"{prefix}/{LOG_FOLDER}/{number:020d}.json" for prefix, number in newest.items()}
        return [key for key in keys if key not in own]

    def put_back(self) -> None:
        """Put the lost objects back. `SimulationError` if another one was written in the place of one."""
        assert isinstance(self.world.store, MemoryStore)
        for key, data in self.lost.items():
            # What watches the store has seen it before.
            if not MemoryStore.create(self.world.store, key, data) and self.world.store.get(key) != data:
                raise SimulationError(f"{key} was lost, and another one was written in its place")
