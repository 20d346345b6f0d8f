"""Functions that open the location given by `--root`, and the user's settings file.

    # ~/.config/sparklog.toml
    root = "prod"
    output = "json"

    [roots]
    prod = "s3://events/log"
    local = "/data/log"

With this file, `--root prod` and `SPARKLOG_ROOT=prod` select the bucket. The command line overrides `SPARKLOG_ROOT` and
`SPARKLOG_OUTPUT`, which override the file. `SPARKLOG_CONFIG` sets the path of the file.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from click import BadParameter, UsageError, get_current_context

from sparklog.common.units import count
from sparklog.errors import BadRequest, SparklogError

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
    """The contents of the settings file. If the file does not exist, all fields have their default values."""

    root: str | None = None
    output: str | None = None
    roots: Mapping[str, str] = field(default_factory=dict)

    def defaults(self) -> dict[str, str]:
        """Return the default values of command parameters."""
        values = {"root": self.root, "output": self.output}
        return {name: value for name, value in values.items() if value is not None}


def settings_path() -> str:
    directory = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.environ.get(CONFIG_VARIABLE) or os.path.join(directory, "sparklog.toml")


def user_settings() -> UserSettings:
    """Read the settings file if it exists. Raises `UsageError` if the file is not valid."""
    path = settings_path()
    try:
        with open(path, "rb") as file:
            text = file.read().decode()
    except FileNotFoundError:
        if CONFIG_VARIABLE in os.environ:
            raise UsageError(f"{path}, given by {CONFIG_VARIABLE}, does not exist") from None
        return UserSettings()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    return _checked(path, _parsed(path, text)) if text.strip() else UserSettings()


def resolve_root_name(text: str) -> str:
    """Return the location of a named root in the settings of the current command. If the settings do not contain the
    name, return the text unchanged.
    """
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
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    return values


def _checked(path: str, values: Mapping[str, Any]) -> UserSettings:
    unknown = sorted(values.keys() - set(KEYS))
    if unknown:
        raise UsageError(f"{path}: expected {', '.join(KEYS)}, found {', '.join(unknown)}")
    output, root, roots = values.get("output"), values.get("root"), values.get("roots", {})
    if output is not None and output not in FORMS:
        raise UsageError(f"{path}: output must be one of {', '.join(FORMS)}, found {output!r}")
    if root is not None and not isinstance(root, str):
        raise UsageError(f"{path}: root must be a string, found {root!r}")
    if not isinstance(roots, Mapping) or not all(isinstance(location, str) for location in roots.values()):
        raise UsageError(f"{path}: [roots] must contain lines of the form NAME = LOCATION, found {roots!r}")
    return UserSettings(root, output, roots)


T = TypeVar("T")


@dataclass(frozen=True)
class OpenLocation:
    """A location that is open for reading.

    Attributes:
        view: The view of the topics.
        topic: The topic, if the location is a topic directory.
        root: The root, or None for a Kafka directory.
        failures: The errors of topics that a command for all topics has skipped.
        accepts: A filter of topic names.
    """

    view: LogView
    topic: str | None
    root: Root | None
    failures: list[SparklogError] = field(default_factory=list)
    accepts: Callable[[str], object] | None = None

    def topics(self) -> list[str]:
        """Return the accepted topics: the topic of a topic directory, or all topics of a root."""
        if self.topic is not None:
            names = [self.topic]
        else:
            names = self.view.topics() if self.root is None else self.root.topics(self.failures)
        return [name for name in names if self.accepts is None or self.accepts(name)]

    def selected(self, names: Sequence[str] | None) -> list[str]:
        """Return the topics with these names, or all topics if no names are given."""
        return [self.one_topic(name) for name in dict.fromkeys(names)] if names else self.topics()

    def narrowed(self, names: Sequence[str] | None) -> list[str]:
        """Return the topics with these names, or the topic of a topic directory. An empty list means all topics."""
        return self.selected(names) if names or self.topic is not None else []

    def each(self, names: Sequence[str] | None, read: Callable[[str], T]) -> list[T]:
        """Call `read` for the topics with these names. If no names are given, call `read` for all topics and collect
        the errors.
        """
        if names or self.topic is not None:
            return [read(name) for name in self.selected(names)]
        results = []
        for name in self.topics():
            try:
                results.append(read(name))
            except SparklogError as error:
                if not self._is_deleted(name):
                    self.failures.append(error)
        return results

    def _is_deleted(self, name: str) -> bool:
        """Return True if a topic was deleted after it was listed."""
        from sparklog.log.state.view import refresh_existing

        try:
            return not refresh_existing(self.view, [name])
        except SparklogError:
            return False

    def refreshed(self, names: Sequence[str] | None) -> list[str]:
        """Refresh the topics with these names, or all topics, in one snapshot, and return their names."""
        selected = self.selected(names)
        try:
            self.view.refresh(selected)
        except SparklogError:
            if names or self.topic is not None:
                raise
            self.failures.clear()
            return self.each(None, self._refresh)
        return selected

    def _refresh(self, name: str) -> str:
        self.view.refresh([name])
        return name

    def one_topic(self, name: str | None) -> str:
        """Return the topic with this name, which may not exist. If no name is given, return the only topic, or raise a
        usage error that lists the topics if the number of topics is not one.
        """
        if name is None:
            names = self.topics()
            if self.failures:
                raise self.failures[0]
            if len(names) != 1:
                choice = f"specify one of {', '.join(names)}" if names else "create a topic first"
                raise BadParameter(f"expected a topic: {self.view.location} has {count(len(names), 'topic')}; {choice}")
            return names[0]
        if self.topic is not None and name != self.topic:
            raise BadParameter(
                f"{self.view.location} is the directory of topic {self.topic}, not of {name}: specify the root instead"
            )
        return name


def open_source(
    root: str,
    *,
    follow: bool = False,
    corrupt_records: str = "fail",
    on_skipped: Callable[[object], None] | None = None,
) -> OpenLocation:
    """Open a location of `SourceOption` for reading. `on_skipped` is called for corrupt data that is skipped."""
    from sparklog.opening import ROOT, TOPIC, open_log, open_view, resolve

    location = resolve(root)
    view = open_view(location, tailing=follow, corrupt_records=corrupt_records, on_skipped=on_skipped)
    return OpenLocation(view, location.topic, open_log(location) if location.kind in (ROOT, TOPIC) else None)


def open_root(root: str, *, create: bool = False) -> Root:
    """Open a sparklog root for writing. If `create` is True, create the root in an empty or new directory."""
    from sparklog.opening import open_log, resolve

    return open_log(resolve(root), create=create)


def open_directory_store(path: str) -> Store:
    """Open the store of a directory, which may not exist. `~` is the home directory, as in `--root`."""
    from sparklog.opening import absolute
    from sparklog.storage import open_store

    return open_store(path if not path or path.startswith("file:") else absolute(path))


def open_root_to_copy(path: str) -> Root:
    """Open a sparklog root. Raises `BadRequest` for topic directories and Kafka directories."""
    from sparklog.opening import KAFKA_DIRECTORY, KAFKA_PARTITION, TOPIC, open_log, resolve

    location = resolve(path)
    if location.kind in (KAFKA_DIRECTORY, KAFKA_PARTITION):
        raise BadRequest(
            f"{location.path} is a {location.kind}, expected a sparklog root: convert it with `sparklog import`"
        )
    if location.kind == TOPIC:
        raise BadRequest(
            f"{location.path} is a topic directory, expected a root: specify --root {shlex.quote(location.root)}, "
            f"and --topic {location.topic} for only this topic"
        )
    return open_log(location)
