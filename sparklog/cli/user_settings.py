"""Settings of a user of the command line: names for roots, the root that is meant without one, the form of output.

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
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from click import UsageError, get_current_context

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
