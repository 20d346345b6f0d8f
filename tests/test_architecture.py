"""Test that modules import only modules of lower layers, and that Spark's planner does not import heavy modules.

The layers are those of docs/design/architecture.md. Imports are read from the source with `ast`. Imports inside
functions are included, because a lazy import is also a dependency.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from tests.support.sources import REPOSITORY, dotted_name, nodes, text

# The lowest layer is first. A package may import itself and the packages of lower lines, but no other package of its
# line.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "limits", "version"}),
    frozenset({"common"}),
    frozenset({"storage"}),
    frozenset({"arguments", "format"}),
    frozenset({"schemas"}),
    frozenset({"formats"}),
    frozenset({"log.journal", "kafka.messages"}),
    frozenset({"log.state"}),
    frozenset({"log.decisions"}),
    frozenset({"log.read"}),
    frozenset({"log.write"}),
    frozenset({"log.topic"}),
    frozenset({"groups"}),
    frozenset({"transactions", "kafka.in_place"}),
    frozenset({"clients.producer", "clients.consumer"}),
    frozenset({"opening", "output"}),
    frozenset({"view", "kafka.importing"}),
    frozenset({"maintenance"}),
    frozenset({"compaction", "retention"}),
    frozenset(
        {
            *("kafka.exporting", "tools.inspection", "tools.verification", "tools.backup", "engines"),
            *("tools.perf", "tools.repartition"),
        }
    ),
    frozenset({"tools.report", "tools.repair"}),
    frozenset({"datasource"}),
    frozenset({"doctor", "serve", "api"}),
    frozenset({"tables"}),
    # The public names of `import sparklog`.
    frozenset({""}),
    frozenset({"console"}),
    # A job needs only its declared options from the command line. `sparklog compact` starts the job by its name.
    frozenset({"jobs"}),
    frozenset({"cli"}),
    # No module of sparklog may use the test doubles.
    frozenset({"testing"}),
)
PACKAGES = frozenset().union(*LAYERS)
# Pure functions between bytes and arrays. They must not import stores, even though the layers would allow it.
NEVER = {("format", "storage")}
# Entry points may import any module: `python -m sparklog`, the modules that Spark finds by name, and the scripts in
# `jobs/`.
ENTRY_POINTS = frozenset({"__main__", "pyspark_sparklog", "jobs/"})

NO_SPARK = PACKAGES - {"", "api", "datasource", "doctor", "maintenance", "compaction", "retention", "jobs"}
FORBIDDEN_BELOW_SPARK = ("pyspark", "pandas")

# Modules that a Spark planner process, a shell prompt or a notebook imports. None of them may import a compiler or
# pandas.
LIGHT = (
    "sparklog",
    "sparklog.api",
    "sparklog.errors",
    "sparklog.storage",
    "sparklog.log.topic.root",
    "sparklog.log.topic.topic",
    "sparklog.log.topic.root",
    "sparklog.kafka.in_place.view",
    "sparklog.clients.consumer.consumer",
    "sparklog.groups.lag",
    "sparklog.transactions.producer",
    "sparklog.transactions.publishing",
    "sparklog.cli.app",
    "sparklog.datasource",
    "sparklog.datasource.data_source",
    "pyspark_sparklog",
)
HEAVY = ("numba", "llvmlite", "pandas", "zstandard", "lz4", "snappy")


def modules(package: str) -> Iterator[tuple[str, Path]]:
    """Return the dotted name and the file of every module of a top-level package."""
    for file in sorted((REPOSITORY / package).rglob("*.py")):
        parts = file.relative_to(REPOSITORY).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def _for_types(source: str) -> set[ast.AST]:
    """Return the nodes below `if TYPE_CHECKING:`."""
    blocks = [node for node in nodes(source) if isinstance(node, ast.If) and dotted_name(node.test) == "TYPE_CHECKING"]
    return {node for block in blocks for node in ast.walk(block)}


@functools.cache
def imports(source: str, *, types: bool = True) -> tuple[tuple[int, str], ...]:
    """Return the line and dotted name of every import of a module, at any depth. A relative import begins with a dot.

    If `types` is True, imports under TYPE_CHECKING are included.
    """
    return tuple(_imports(source, set() if types else _for_types(source)))


def _imports(source: str, without: set[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes(source):
        if node in without:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, "." * node.level + f"{node.module or ''}.{alias.name}"
        elif isinstance(node, ast.Call) and dotted_name(node.func).endswith(("import_module", "__import__")):
            # Calls such as `import_module("sparklog.version")`, and the constant prefix of f"sparklog.jobs.{name}".
            argument = node.args[0] if node.args else None
            text = argument.values[0] if isinstance(argument, ast.JoinedStr) and argument.values else argument
            if isinstance(text, ast.Constant) and str(text.value).startswith("sparklog"):
                yield node.lineno, str(text.value).rstrip(".")


def layer(module: str) -> str:
    """Return the package of a module as `LAYERS` lists it: `sparklog.log.topic.root` -> `log.topic`.

    The result is empty for `sparklog`. A package next to `sparklog` has its own name, and `jobs/` is the directory of
    scripts.
    """
    top, _, rest = module.partition(".")
    if top != "sparklog":
        return f"{top}/" if top == "jobs" else top
    first, _, rest = rest.partition(".")
    inner = f"{first}.{rest.partition('.')[0]}"
    return inner if inner in PACKAGES else first


def height(name: str) -> int:
    return next(index for index, names in enumerate(LAYERS) if name in names)


def violations(module: str, source: str) -> list[str]:
    """Return the imports of a module of the same layer, of higher layers, and of modules that its layer
    must not use.
    """
    own = layer(module)
    without_spark = own in NO_SPARK
    found = []
    for line, name in imports(source):
        target = layer(name)
        if name.startswith("."):
            found.append(f"{module}:{line} imports {name}: write absolute imports")
        elif without_spark and name.partition(".")[0] in FORBIDDEN_BELOW_SPARK:
            found.append(f"{module}:{line} imports {name}: {own} works without Spark")
        elif name.partition(".")[0] != "sparklog" or own in ENTRY_POINTS or target == own:
            continue
        elif target not in PACKAGES or height(target) >= height(own) or (own, target) in NEVER:
            found.append(f"{module}:{line} imports {name}: {own} may not know {target or 'the package itself'}")
    return found


def test_modules_import_only_lower_layers() -> None:
    found = []
    for package in ("sparklog", "pyspark_sparklog", "jobs"):
        for module, file in modules(package):
            found += violations(module, text(file))
    assert not found, "\n".join(found)


def circle(sources: Mapping[str, str], *, types: bool) -> list[str]:
    """Return an import cycle, as the list of its modules with the first module repeated at the end, or an empty list.

    If `types` is True, imports under TYPE_CHECKING are included.
    """
    graph: dict[str, set[str]] = {module: set() for module in sources}
    for module, source in sources.items():
        for _, name in imports(source, types=types):
            target = name
            while target and target not in sources:
                target = target.rpartition(".")[0]
            if target and target != module:
                graph[module].add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


@pytest.mark.parametrize("types", [False, True])
def test_modules_have_no_import_cycles(types: bool) -> None:
    sources = {module: text(file) for module, file in modules("sparklog")}
    found = circle(sources, types=types)
    assert not found, " imports ".join(found)


@pytest.mark.parametrize(
    ("back", "running", "with_types"),
    [
        ("", [], []),
        ("import sparklog.a", ["a", "b", "c", "a"], ["a", "b", "c", "a"]),
        ("def f():\n    from sparklog.a import g", ["a", "b", "c", "a"], ["a", "b", "c", "a"]),
        ("if TYPE_CHECKING:\n    from sparklog.a import G", [], ["a", "b", "c", "a"]),
        ("from sparklog import d", [], []),
    ],
)
def test_import_cycles_are_detected(back: str, running: list[str], with_types: list[str]) -> None:
    own = {"a": "from sparklog.b import f", "b": "from sparklog import c", "c": back, "d": ""}
    sources = {"sparklog": "", **{f"sparklog.{name}": source for name, source in own.items()}}
    for types, expected in ((False, running), (True, with_types)):
        found = [name.removeprefix("sparklog.") for name in circle(sources, types=types)]
        assert sorted(set(found)) == sorted(set(expected))
        assert "b" not in found or found[found.index("b") + 1] == "c", "each imports the next"


def folder_of(module: str) -> str:
    """Return the directory or module in `sparklog/` that contains a module: `sparklog.log.topic.root` -> `log`."""
    return module.partition("sparklog.")[2].partition(".")[0]


def test_packages_have_no_import_cycles() -> None:
    """Cycles are checked between the top-level directories: `log`, `kafka` and `tools` are one directory each."""
    graph: dict[str, set[str]] = {}
    for module, file in modules("sparklog"):
        if folder := folder_of(module):
            targets = {folder_of(name) for _, name in imports(text(file)) if name.startswith("sparklog.")}
            graph.setdefault(folder, set()).update(targets - {folder})
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"folders import one another: {' imports '.join(reversed(error.args[1]))}")
    assert order.index("storage") < order.index("log") < order.index("datasource")


def test_every_package_has_a_layer() -> None:
    found = {layer(module) for module, file in modules("sparklog") if file.name != "__init__.py"} - ENTRY_POINTS
    assert found <= PACKAGES, "name the layer of a new package in LAYERS"


@pytest.mark.parametrize(
    ("module", "source", "complaints"),
    [
        ("sparklog.log.topic.topic", "from sparklog.format.encode import encode", 0),
        ("sparklog.log.topic.topic", "from sparklog.datasource import options", 1),
        ("sparklog.format.encode", "def f():\n    import sparklog.log.topic.topic", 1),
        ("sparklog.format.encode", "from sparklog.storage import open_store", 1),
        ("sparklog.kafka.in_place.view", "from sparklog.transactions.listing import standing", 1),
        ("sparklog.log.topic.root", "import sparklog", 1),
        ("sparklog.log.topic.root", "from sparklog import errors", 0),
        ("sparklog.log.topic.root", "from . import names", 1),
        ("sparklog.log.topic.root", "import_module('sparklog.version')", 0),
        ("sparklog.log.topic.root", "importlib.import_module('sparklog.datasource.session')", 1),
        ("sparklog.log.topic.root", "import_module(f'sparklog.datasource.{name}')", 1),
        ("sparklog.cli.commands.topics", "import pyspark", 1),
        ("sparklog.datasource.data_source", "import pyspark", 0),
    ],
)
def test_layer_check_detects_violations(module: str, source: str, complaints: int) -> None:
    assert len(violations(module, source)) == complaints


def test_every_module_can_be_imported() -> None:
    names = [module.name for module in pkgutil.walk_packages(sparklog.__path__, "sparklog.")]
    for name in names:
        if not name.endswith("__main__"):
            assert importlib.import_module(name).__doc__, f"{name} says nothing of what it is for"
    assert "sparklog.log.topic.topic" in names


IMPORTING = """
import importlib, json, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
    print(json.dumps([module, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def loaded_by(*names: str) -> dict[str, set[str]]:
    """Return the top-level names in `sys.modules` of a new interpreter after each of these imports, in order."""
    command = [sys.executable, "-c", IMPORTING, *names]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=True)
    return {module: set(loaded) for module, loaded in map(json.loads, answer.stdout.splitlines())}


def test_planners_do_not_import_heavy_modules() -> None:
    """Only the adapter imports Spark, so it is imported last."""
    names = sorted(set(LIGHT), key=lambda module: "datasource" in module or "pyspark" in module)
    imported = loaded_by(*names)
    assert list(imported) == names
    for module, loaded in imported.items():
        adapter = "datasource" in module or "pyspark" in module
        heavy = loaded & {*HEAVY, *(() if adapter else ("pyspark",))}
        assert not heavy, f"{module}, or one before it, imports {sorted(heavy)} before anything is read or written"


PLANNING = """
import json, pickle, sys
from sparklog.opening import open_view, resolve
from sparklog.log.state.view import OffsetRange
view = open_view(resolve(sys.argv[1]), tailing=False)
topic = view.topics()[-1]
view.refresh([topic])
ranges = [OffsetRange(topic, n, bound.log_start, bound.log_end) for n, bound in view.bounds(topic).items()]
parts = view.plan(ranges, "read_committed")
assert sum(len(pickle.dumps(part)) for part in parts), parts
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.mark.parametrize("place", ["root", "kafka"])
def test_planning_does_not_import_heavy_modules(tmp_path: Path, place: str) -> None:
    """pyarrow imports pandas if it is called with a list, so planning itself is tested in addition to the imports."""
    path = tmp_path if place == "root" else REPOSITORY / "examples" / "data" / "kafka-log-dir"
    if place == "root":
        topic = sparklog.open(tmp_path, create=True).create_topic("t", partitions=2)
        topic.append(pa.table({"value": [b"a", b"b", b"c"]}))
    answer = subprocess.run(
        [sys.executable, "-c", PLANNING, path], capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    assert answer.returncode == 0, answer.stderr
    loaded = set(json.loads(answer.stdout))
    assert not loaded & {*HEAVY, "pyspark"}, f"planning imports {sorted(loaded & {*HEAVY, 'pyspark'})}"
