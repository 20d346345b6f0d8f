"""Which folder is it: from `--root` to something that can be read or written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import typer

from sparklog.cli.terminal import complain
from sparklog.errors import SparklogError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sparklog.log.state.view import LogView
    from sparklog.log.topic.root import Root
    from sparklog.maintenance.work import Settings
    from sparklog.storage import Store

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """A readable place; `topic` is set where the folder is one topic's.

    A command about all topics is not stopped by one that cannot be read: its error waits in `failures` for `complain`.
    """

    view: LogView
    topic: str | None
    root: Root | None
    """None for Kafka's directories."""
    failures: list[SparklogError] = field(default_factory=list)

    def topics(self) -> list[str]:
        """The topics here: one for a topic folder, else all."""
        if self.topic is not None:
            return [self.topic]
        return self.view.topics() if self.root is None else self.root.topics(self.failures)

    def narrowed(self, named: Sequence[str] | None) -> list[str]:
        """The topics that were named, the one of a topic folder; empty: no choice was made, all are meant."""
        if not named and self.topic is None:
            return []
        return self._named(named)

    def each(self, named: Sequence[str] | None, look: Callable[[str], T]) -> list[T]:
        """What `look` finds of each topic that was named, or of all there are."""
        if named or self.topic is not None:
            return [look(name) for name in self._named(named)]
        found = []
        for name in self.topics():
            try:
                found.append(look(name))
            except SparklogError as error:
                self.failures.append(error)
        return found

    def refreshed(self, named: Sequence[str] | None) -> list[str]:
        """The topics that were named, or all, in one new snapshot of the view."""
        names = self._named(named)
        try:
            self.view.refresh(names)
        except SparklogError:
            if named or self.topic is not None:
                raise
            self.failures.clear()
            return self.each(None, self._refresh)
        return names

    def complain(self) -> None:
        """A line for each topic that could not be read; exit code 1 if there was one."""
        complain(self.failures)

    def _named(self, named: Sequence[str] | None) -> list[str]:
        return [self.one_topic(name) for name in dict.fromkeys(named)] if named else self.topics()

    def _refresh(self, name: str) -> str:
        self.view.refresh([name])
        return name

    def one_topic(self, name: str | None) -> str:
        """The topic that was named, or the only one there is; a usage error names the choice.

        A name that does not exist is left to the view, whose error names its nearest neighbours.
        """
        if name is None:
            found = self.topics()
            if self.failures:
                raise self.failures[0]
            if len(found) != 1:
                choice = f"one of {', '.join(found)}" if found else "there is none"
                raise typer.BadParameter(f"which topic? {self.view.location} holds {len(found)}: {choice}")
            return found[0]
        if self.topic is not None and name != self.topic:
            raise typer.BadParameter(f"the folder is topic {self.topic}'s, not {name}'s: give its root instead")
        return name


def open_place(
    root: str,
    *,
    follow: bool = False,
    corrupt_records: str = "fail",
    on_skipped: Callable[[object], None] | None = None,
) -> Place:
    """A root, a topic folder, a Kafka log directory or one Kafka partition folder, for reading.

    `corrupt_records`, `on_skipped`: what damage in a Kafka directory does, and who is told.
    """
    from sparklog.kafka.in_place.location import ROOT, TOPIC, open_log, open_view, resolve

    location = resolve(root)
    view = open_view(location, tailing=follow, corrupt_records=corrupt_records, on_skipped=on_skipped)
    return Place(view, location.topic, open_log(location) if location.kind in (ROOT, TOPIC) else None)


def open_root(root: str, *, create: bool = False) -> Root:
    """A sparklog root, for writing; `create` makes a new one where there is nothing yet."""
    from sparklog.kafka.in_place.location import open_log, resolve

    return open_log(resolve(root), create=create)


def open_folder(path: str) -> Store:
    """The store of a folder that need not be there; `~` is the home directory, as in `--root`."""
    from sparklog.kafka.in_place.location import absolute
    from sparklog.storage import open_store

    return open_store(path if not path or path.startswith("file:") else absolute(path))


def root_to_copy(path: str) -> Root:
    """A sparklog root, to be copied. Raises BadRequest for one topic's folder and for Kafka's directories."""
    from sparklog.errors import BadRequest
    from sparklog.kafka.in_place.location import KAFKA_DIRECTORY, KAFKA_PARTITION, TOPIC, open_log, resolve

    location = resolve(path)
    if location.kind in (KAFKA_DIRECTORY, KAFKA_PARTITION):
        raise BadRequest(
            f"{location.path} is a {location.kind}, expected a sparklog root: `sparklog import` makes one of it"
        )
    if location.kind == TOPIC:
        raise BadRequest(
            f"{location.path} is the folder of one topic: give --root {location.root}, "
            f"with --topic {location.topic} for that one alone"
        )
    return open_log(location)


def root_if_there(root: str) -> Root | None:
    """A sparklog root, None where there is none yet: for dry runs."""
    from sparklog.errors import NotFound

    try:
        return open_root(root)
    except NotFound:
        return None


def report_settings(place: Place, properties: str | None = None, now: str | None = None) -> Settings:
    """What a report goes by: a properties file of the maintenance jobs, and a time (default: the store's clock)."""
    from dataclasses import replace

    from sparklog.cli.times import parse_time
    from sparklog.log.journal.env import SYSTEM
    from sparklog.maintenance.arguments import settings_file
    from sparklog.maintenance.work import Settings, store_clock_ms

    given = Settings(0) if properties is None else settings_file(properties)
    if now is not None:
        return replace(given, now_ms=parse_time(now, "--now"))
    if place.root is None:
        return replace(given, now_ms=SYSTEM.wall_ms())
    return replace(given, now_ms=store_clock_ms(place.root.store, place.root.env, dry_run=True))
