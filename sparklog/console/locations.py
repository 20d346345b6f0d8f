"""Folders that `--root` may name, opened for reading or for writing, and a user's settings of the command line.

    # ~/.config/sparklog.toml
    root = "prod"
    output = "json"

    [roots]
    prod = "s3://events/log"
    local = "/data/log"

`--root prod` and `SPARKLOG_ROOT=prod` are then the bucket. What is given on the command line comes first, then
`SPARKLOG_ROOT` and `SPARKLOG_OUTPUT`, then this file. `SPARKLOG_CONFIG` names another file.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from click import BadParameter, UsageError, get_current_context

from sparklog.errors import SparklogError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sparklog.log.state.view import LogView
    from sparklog.log.topic.root import Root
    from sparklog.storage import Store


CONFIG_VARIABLE = "SPARKLOG_CONFIG"
FORMS = ("table", "json", "csv")
KEYS = ("output", "root", "roots")


@dataclass(frozen=True, slots=True)
class UserSettings:
    """The file's content; without a file nothing is set."""

    root: str | None = None
    output: str | None = None
    roots: Mapping[str, str] = field(default_factory=dict)

    def defaults(self) -> dict[str, str]:
        """Return values for parameters of commands that are not given."""
        values = {"root": self.root, "output": self.output}
        return {name: value for name, value in values.items() if value is not None}


def settings_path() -> str:
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.environ.get(CONFIG_VARIABLE) or os.path.join(folder, "sparklog.toml")


def user_settings() -> UserSettings:
    """Read the file, if there is one. `UsageError` says what is wrong in it."""
    path = settings_path()
    try:
        with open(path, "rb") as file:
            text = file.read().decode()
    except FileNotFoundError:
        if CONFIG_VARIABLE in os.environ:
            raise UsageError(f"{CONFIG_VARIABLE} names {path}, which does not exist") from None
        return UserSettings()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    return _checked(path, _parsed(path, text)) if text.strip() else UserSettings()


def root_of_name(text: str) -> str:
    """Return the location that a name stands for in the settings of the command that runs, else the text itself."""
    settings = get_current_context().obj
    return settings.roots.get(text, text) if isinstance(settings, UserSettings) else text


def _parsed(path: str, text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        values: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    return values


def _checked(path: str, values: Mapping[str, Any]) -> UserSettings:
    unknown = sorted(values.keys() - set(KEYS))
    if unknown:
        raise UsageError(f"{path}: expected {', '.join(KEYS)}, found {', '.join(unknown)}")
    output, root, roots = values.get("output"), values.get("root"), values.get("roots", {})
    if output is not None and output not in FORMS:
        raise UsageError(f"{path}: output is one of {', '.join(FORMS)}, found {output!r}")
    if root is not None and not isinstance(root, str):
        raise UsageError(f"{path}: root is a text, found {root!r}")
    if not isinstance(roots, Mapping) or not all(isinstance(place, str) for place in roots.values()):
        raise UsageError(f"{path}: [roots] has a line NAME = LOCATION for each root, found {roots!r}")
    return UserSettings(root, output, roots)


T = TypeVar("T")


@dataclass(frozen=True)
class OpenFolder:
    """A folder opened for reading; `topic` is set where it is one topic's, `root` is None for Kafka's directories.
    `accepts` says which topics all of them are.

    A command about all topics goes on where one cannot be read: its error is kept in `failures`.
    """

    view: LogView
    topic: str | None
    root: Root | None
    failures: list[SparklogError] = field(default_factory=list)
    accepts: Callable[[str], object] | None = None

    def topics(self) -> list[str]:
        """Return the topics of the folder that are accepted: one for a topic folder, else all."""
        if self.topic is not None:
            names = [self.topic]
        else:
            names = self.view.topics() if self.root is None else self.root.topics(self.failures)
        return [name for name in names if self.accepts is None or self.accepts(name)]

    def chosen(self, names: Sequence[str] | None) -> list[str]:
        return [self.one_topic(name) for name in dict.fromkeys(names)] if names else self.topics()

    def narrowed(self, names: Sequence[str] | None) -> list[str]:
        """Return the topics of these names, or the one of a topic folder; empty: all are meant."""
        return self.chosen(names) if names or self.topic is not None else []

    def each(self, names: Sequence[str] | None, look: Callable[[str], T]) -> list[T]:
        """Call `look` for the topics of these names, or for all."""
        if names or self.topic is not None:
            return [look(name) for name in self.chosen(names)]
        results = []
        for name in self.topics():
            try:
                results.append(look(name))
            except SparklogError as error:
                if not self._is_gone(name):
                    self.failures.append(error)
        return results

    def _is_gone(self, name: str) -> bool:
        """True if a topic that was listed was deleted since."""
        from sparklog.log.state.view import refresh_existing

        try:
            return not refresh_existing(self.view, [name])
        except SparklogError:
            return False

    def refreshed(self, names: Sequence[str] | None) -> list[str]:
        """Return the topics of these names, or all, in one new snapshot of the view."""
        chosen = self.chosen(names)
        try:
            self.view.refresh(chosen)
        except SparklogError:
            if names or self.topic is not None:
                raise
            self.failures.clear()
            return self.each(None, self._refresh)
        return chosen

    def _refresh(self, name: str) -> str:
        self.view.refresh([name])
        return name

    def one_topic(self, name: str | None) -> str:
        """Return the topic of this name, which need not exist, or the only one; a usage error lists the choice."""
        if name is None:
            names = self.topics()
            if self.failures:
                raise self.failures[0]
            if len(names) != 1:
                choice = f"one of {', '.join(names)}" if names else "there is none"
                raise BadParameter(f"which topic? {self.view.location} holds {len(names)}: {choice}")
            return names[0]
        if self.topic is not None and name != self.topic:
            raise BadParameter(f"the folder is topic {self.topic}'s, not {name}'s: give its root instead")
        return name


def open_source(
    root: str,
    *,
    follow: bool = False,
    corrupt_records: str = "fail",
    on_skipped: Callable[[object], None] | None = None,
) -> OpenFolder:
    """Open for reading what `SourceOption` names; `on_skipped` is called with damage that is skipped."""
    from sparklog.opening import ROOT, TOPIC, open_log, open_view, resolve

    location = resolve(root)
    view = open_view(location, tailing=follow, corrupt_records=corrupt_records, on_skipped=on_skipped)
    return OpenFolder(view, location.topic, open_log(location) if location.kind in (ROOT, TOPIC) else None)


def open_root(root: str, *, create: bool = False) -> Root:
    """Open a sparklog root for writing; `create` makes a new one where there is nothing yet."""
    from sparklog.opening import open_log, resolve

    return open_log(resolve(root), create=create)


def open_folder(path: str) -> Store:
    """Open the store of a folder that need not exist; `~` is the home directory, as in `--root`."""
    from sparklog.opening import absolute
    from sparklog.storage import open_store

    return open_store(path if not path or path.startswith("file:") else absolute(path))


def root_to_copy(path: str) -> Root:
    """Open a sparklog root; `BadRequest` for one topic's folder and for Kafka's directories."""
    from sparklog.errors import BadRequest
    from sparklog.opening import KAFKA_DIRECTORY, KAFKA_PARTITION, TOPIC, open_log, resolve

    location = resolve(path)
    if location.kind in (KAFKA_DIRECTORY, KAFKA_PARTITION):
        raise BadRequest(
            f"{location.path} is a {location.kind}, expected a sparklog root: `sparklog import` makes one of it"
        )
    if location.kind == TOPIC:
        raise BadRequest(
            f"{location.path} is the folder of one topic: give --root {shlex.quote(location.root)}, "
            f"with --topic {location.topic} for that one alone"
        )
    return open_log(location)
