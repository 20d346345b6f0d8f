"""A process of the torture test: its root, its ledger, its faults, and the loop that repeats its steps."""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sparklog
from sparklog.errors import BadRequest, Corrupt, Fenced, SparklogError

Step = Callable[[], object]
MARK = "SPARKLOG_TORTURE"
FAULTS = "faults"
"""The name of the ledger of faults, which are events that must never happen."""


@dataclass(frozen=True)
class World:
    """The environment of a run. `mount` is the caching mount of `disk`, if any; `ports` are those of the servers."""

    folder: Path
    seed: int
    pace: float
    ports: tuple[int, ...]
    mounted: bool

    @property
    def disk(self) -> Path:
        return self.folder / "disk" / "root"

    @property
    def mount(self) -> Path:
        return (self.folder / "mount" / "root") if self.mounted else self.disk

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]

    def ledger(self, name: str) -> Path:
        return self.folder / "ledgers" / f"{name}.jsonl"

    def entries(self, prefix: str) -> Iterator[tuple[str, Any]]:
        """Yield kind and content of each entry of the ledgers whose names start with `prefix`."""
        for path in sorted((self.folder / "ledgers").glob(f"{prefix}*.jsonl")):
            yield from LedgerTail(path).new()


class LedgerTail:
    """A reader of a ledger; `new` returns the entries since the last call."""

    def __init__(self, path: Path) -> None:
        self._path, self._position = path, 0

    def new(self) -> list[tuple[str, Any]]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            lines = file.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._position += len(whole)
        return [(entry[0], entry[1:]) for entry in map(json.loads, whole.splitlines())]


@dataclass
class Process:
    """One process of a role. `id` is part of the records that it writes."""

    world: World
    name: str
    incarnation: int
    place: Path
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.world.seed} {self.id}")
        self._ledger = os.open(self.world.ledger(self.name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @property
    def id(self) -> str:
        return f"{self.name}.{self.incarnation}"

    def root(self) -> sparklog.Root:
        return sparklog.open(self.place)

    def log(self, kind: str, *content: object) -> None:
        """Add an entry to the ledger in one write, so that a kill leaves it complete or missing."""
        os.write(self._ledger, json.dumps([kind, *content]).encode() + b"\n")

    def fault(self, message: str) -> None:
        """Report an event that must never happen."""
        with self.world.ledger(FAULTS).open("a") as file:
            file.write(json.dumps(["fault", self.id, message[:20000]]) + "\n")

    def pause(self, mean_s: float) -> None:
        time.sleep(self.random.expovariate(self.world.pace / mean_s))

    def run(self, role: Callable[[Process], Step], pause_s: float) -> None:
        """Repeat the steps of the role until the process is killed, is fenced or fails. Half of the errors are ignored.

        `Corrupt`, `BadRequest` and errors that are not errors of sparklog are faults.
        """
        self.log("began", str(self.place))
        step: Step | None = None
        while True:
            try:
                step = role(self) if step is None else step
                step()
            except SparklogError as error:
                self.log("error", type(error).__name__, str(error))
                if isinstance(error, (Corrupt, BadRequest)):
                    self.fault(f"{type(error).__name__}: {error}")
                if step is None or isinstance(error, Fenced) or self.random.random() < 0.5:
                    return
            except BaseException as error:  # noqa: BLE001 - reported as a fault
                if type(error).__module__ != "kafka.errors":
                    self.fault(traceback.format_exc())
                self.log("error", type(error).__name__, str(error))
                return
            self.pause(pause_s)


def environment(world: World) -> dict[str, str]:
    """Return the environment of the programs of a run, by which remaining programs are found."""
    path = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, MARK: str(world.folder), "PYTHONPATH": path}


def become(process: Process, arguments: list[str]) -> None:
    """Replace this process by a Python program."""
    os.execve(sys.executable, [sys.executable, *arguments], environment(process.world))
