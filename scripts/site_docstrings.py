"""Show the section `Example:` of a docstring as a block of code: an extension of griffe, which mkdocs.yml names."""

from __future__ import annotations

import re

import griffe

EXAMPLE = re.compile(r"^Example:\n((?:[ ]+.*\n?|\n)+)", re.MULTILINE)


def with_code(docstring: str) -> str:
    """Return the docstring with its example fenced, below griffe's own name for the section."""
    return EXAMPLE.sub(lambda match: f"Examples:\n    ```python\n{match[1].rstrip()}\n    ```\n", docstring)


class Examples(griffe.Extension):  # type: ignore[misc]  # there is no griffe where only mypy runs
    """Griffe asks it about each object that it has read."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Change the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = with_code(obj.docstring.value)
