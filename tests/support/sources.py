"""The repository's files for tests of the codebase: each is listed, read and parsed once per process."""

from __future__ import annotations

import ast
import functools
import gc
import os
from collections.abc import Collection, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


@functools.cache
def _listed() -> tuple[Path, ...]:
    """All files outside of hidden folders (an environment is one) and of `examples/data`, sorted."""
    paths = []
    for folder, folders, names in os.walk(REPOSITORY):
        folders[:] = [name for name in folders if not name.startswith(".") or name == ".ci"]
        paths += [Path(folder, name) for name in names]
    data = REPOSITORY / "examples" / "data"
    return tuple(sorted(path for path in paths if not path.is_relative_to(data)))


def files(*folders: str, suffixes: Collection[str], names: Collection[str] = ()) -> Iterator[Path]:
    """Files of the repository by suffix or name, below the folders or, with none, everywhere."""
    roots = [REPOSITORY / folder for folder in folders] or [REPOSITORY]
    for root in roots:
        for path in _listed():
            if (path.suffix in suffixes or path.name in names) and path.is_relative_to(root):
                yield path


@functools.cache
def text(path: Path) -> str:
    return path.read_text()


@functools.cache
def parsed(source: str) -> ast.Module:
    """Parse a module. The tree is shared: leave it as it is."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if enabled:
            gc.enable()


@functools.cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a module, as `ast.walk` yields them."""
    return tuple(ast.walk(parsed(source)))


def dotted_name(node: ast.expr) -> str:
    """Return `ast.unparse` of a name such as `os.path.join`; of other expressions, as a call, only what comes last."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return ""
