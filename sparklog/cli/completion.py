"""Names that a shell completes: of topics, of groups, of configs. Where a look fails or takes long, nothing is offered.

The root is the one that the line names, or else the one that is meant without `--root`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, suppress
from io import StringIO
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from click import Context, Parameter

SECONDS = 1.0
"""The longest that a key press waits for a store."""


def _completer(list_names: Callable[[str], Iterable[str]]) -> Callable[[Context, Parameter, str], list[str]]:
    """Return what click asks for the names that go on from a text: from its last one, where commas divide them."""

    def complete(context: Context, parameter: Parameter, text: str) -> list[str]:
        before, comma, last = text.rpartition(",")
        names: list[str] = []

        def look() -> None:
            with suppress(Exception):
                names.extend(list_names(context.params.get("root") or ""))

        # Nothing is printed between the prompts.
        with redirect_stderr(StringIO()):
            thread = Thread(target=look, daemon=True)
            thread.start()
            thread.join(SECONDS)
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete


def _topics(root: str) -> Iterable[str]:
    from sparklog.opening import open_view, resolve

    location = resolve(root)
    return [location.topic] if location.topic else open_view(location, tailing=False).topics()


def _groups(root: str) -> Iterable[str]:
    from sparklog.groups.lag import Groups
    from sparklog.opening import open_log, resolve

    return Groups(open_log(resolve(root))).names()


def _configs(root: str) -> Iterable[str]:
    from sparklog.log.state.configs import CONFIGS

    return CONFIGS


COMPLETERS = {
    **dict.fromkeys(("topic", "topics", "topic_option", "topic_argument"), _completer(_topics)),
    **dict.fromkeys(("group", "groups", "group_option"), _completer(_groups)),
    **dict.fromkeys(("names", "delete_config"), _completer(_configs)),
}
"""By the name of a parameter in Python."""
