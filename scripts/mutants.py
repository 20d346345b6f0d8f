"""Mutation testing: change one operator of a module at a time, run the module's tests, and report undetected changes.

    python -m scripts.mutants [--per-module 20] [--seed DATE] [--only sparklog/log/read] [--report FILE] [--processes 2]

A mutant inverts a comparison or a condition, makes a comparison strict, replaces `and` with `or` or `+` with `-`,
increments a number, or makes a `return` statement return None. The tests of a module are listed by
`tests/module_map.py`; tests that need Spark or Java and sweeps are skipped. For each package, `BOUNDS` defines the
minimum share of mutants that the tests must kill. The command fails if a package is below its minimum. The seed selects
the mutants, so that each nightly run tests different mutants and any run can be repeated.

The process imports the libraries once and forks for each mutant. The child process runs in a copy of the checkout in
which one file is changed. Kernels are excluded, because numba would compile each mutant of a kernel first.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from tests.module_map import find_tests, package_modules
from tests.support.sources import REPOSITORY

BOUNDS: Mapping[str, float] = {"": 0.6}
"""Minimum share of killed mutants by package; the empty name stands for all packages that are not listed."""
EXCLUDED = ("sparklog/format/kernels/", "sparklog/format/legacy/legacy_kernels.py", "sparklog/testing/")
MARKS = "not slow and not sweep and not spark and not java"
SLOWEST_SECONDS = 60
"""Tests of a mutant time out after three times the usual duration plus this many seconds. The mutant is then killed."""
PASSED, NO_TESTS, TIMED_OUT = 0, 5, -1
"""Exit codes of pytest, and the code that `run_tests` returns if the tests time out."""
KILLED, SURVIVED, UNTESTED = "killed", "survived", "tests fail without a change"

COMPARISONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one change. `source` is the complete source of the changed module."""

    module: str
    line: int
    change: str
    source: str

    @property
    def title(self) -> str:
        return f"{self.module}:{self.line} {self.change}"


def package_of(module: str) -> str:
    """Return the package of a module, for example `log/read` for `sparklog/log/read/fetch.py`.

    The name is empty for modules directly in `sparklog/`.
    """
    return "/".join(Path(module).parent.parts[1:3])


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """Yield the changes of a node: the expression, its replacement and the name of the change."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        other = COMPARISONS[type(node.ops[0])]
        name = f"{type(node.ops[0]).__name__} -> {other.__name__}"
        yield node, ast.Compare(node.left, [other(), *node.ops[1:]], node.comparators), name
    elif isinstance(node, ast.BoolOp):
        other_bool = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, ast.BoolOp(other_bool, node.values), f"{type(node.op).__name__} -> {type(other_bool).__name__}"
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        operator = OPERATORS[type(node.op)]
        name = f"{type(node.op).__name__} -> {operator.__name__}"
        yield node, ast.BinOp(node.left, operator(), node.right), name
    elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        value = not node.value if isinstance(node.value, bool) else int(str(node.value)) + 1
        yield node, ast.Constant(value), f"{node.value!r} -> {value}"
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield node.test, ast.UnaryOp(ast.Not(), node.test), "condition negated"
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield node.value, ast.Constant(None), "returns None"


def _code_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in function bodies, except annotated assignments, `raise` statements and f-strings."""
    pending = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    pending = [statement for function in pending for statement in function.body]  # type: ignore[misc]
    visited: set[int] = set()
    while pending:
        node: ast.AST = pending.pop()
        skipped_nodes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Raise, ast.JoinedStr, ast.AnnAssign)
        if id(node) not in visited and not isinstance(node, skipped_nodes):
            visited.add(id(node))
            yield node
            pending += ast.iter_child_nodes(node)  # type: ignore[arg-type]


def mutants_of(module: str, source: str, number: int, rng: random.Random) -> list[Mutant]:
    """Return up to `number` randomly selected mutants of a module, ordered by line."""
    changes = [change for node in _code_nodes(ast.parse(source)) for change in _changes(node)]
    drawn = rng.sample(changes, min(number, len(changes)))
    mutants = [Mutant(module, old.lineno, name, _replaced(source, old, new)) for old, new, name in drawn]
    return sorted(mutants, key=lambda mutant: mutant.line)


def _replaced(source: str, old: ast.expr, new: ast.expr) -> str:
    """Return the source with one expression replaced."""
    assert old.end_lineno is not None
    assert old.end_col_offset is not None
    lines = source.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: old.lineno - 1])) + old.col_offset
    end = sum(map(len, lines[: old.end_lineno - 1])) + old.end_col_offset
    text = f"({ast.unparse(ast.fix_missing_locations(new))})"
    whole = source.encode()
    return (whole[:start] + text.encode() + whole[end:]).decode()


def copied_checkout(folder: Path) -> Path:
    """Copy `sparklog/` to a directory, so that its files can be changed, and link all other files of the repository."""
    shutil.copytree(REPOSITORY / "sparklog", folder / "sparklog")
    for path in REPOSITORY.iterdir():
        if path.name not in ("sparklog", "build") and not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    return folder


def run_tests(checkout: Path, tests: Sequence[str], seconds: float) -> tuple[int, float]:
    """Run tests on a copy of the checkout in a forked process; return pytest's exit code and the seconds it took."""
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        _exec_tests(checkout, tests)
    while time.monotonic() - start < seconds:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), time.monotonic() - start
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return TIMED_OUT, seconds


def _exec_tests(checkout: Path, tests: Sequence[str]) -> None:
    """Run pytest on a copy of the checkout and exit the process with its exit code.

    Modules that were imported from the original checkout are removed first.
    """
    code = 3
    try:
        os.setsid()
        os.chdir(checkout)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        for name in [name for name in sys.modules if name.partition(".")[0] in ("sparklog", "tests", "scripts")]:
            del sys.modules[name]
        sys.path.insert(0, str(checkout))
        os.environ["PYTHONPATH"] = str(checkout)
        sys.dont_write_bytecode = True
        import pytest

        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", MARKS, f"--rootdir={checkout}", *tests]))
    finally:
        os._exit(code)


@dataclass(frozen=True, slots=True)
class MutantResult:
    """The test result of one mutant. If the tests fail on the unchanged module, `title` is the path of the module."""

    module: str
    title: str
    result: str


def try_module(module: str, number: int, seed: str) -> list[MutantResult]:
    """Run the tests of a module on up to `number` mutants, one mutant at a time."""
    source = (REPOSITORY / module).read_text()
    tests = find_tests(module)
    mutants = mutants_of(module, source, number, random.Random(f"{seed} {module}"))
    with tempfile.TemporaryDirectory(prefix="sparklog-mutants-") as folder:
        checkout = copied_checkout(Path(folder))
        code, usual = run_tests(checkout, tests, 600)
        if code == NO_TESTS:  # All tests need Spark or Java.
            return []
        if code != PASSED:
            return [MutantResult(module, module, UNTESTED)]
        results = []
        for mutant in mutants:
            (checkout / module).write_text(mutant.source)
            code, _ = run_tests(checkout, tests, 3 * usual + SLOWEST_SECONDS)
            results.append(MutantResult(module, mutant.title, SURVIVED if code == PASSED else KILLED))
        return results


def report_of(results: Sequence[MutantResult]) -> tuple[str, bool]:
    """Return the report, and True if no package is below its bound."""
    packages: dict[str, list[MutantResult]] = defaultdict(list)
    for result in results:
        packages[package_of(result.module)].append(result)
    lines, good = [], True
    for package, of_package in sorted(packages.items()):
        killed = sum(result.result == KILLED for result in of_package)
        bound = BOUNDS.get(package, BOUNDS[""])
        above = killed >= bound * len(of_package) and not any(result.result == UNTESTED for result in of_package)
        good &= above
        share = f"{killed} of {len(of_package)} killed ({killed / len(of_package):.0%}, at least {bound:.0%})"
        lines.append(f"{package or 'sparklog'}: {share}{'' if above else ': BELOW ITS BOUND'}")
        lines += [f"  {result.result}: {result.title}" for result in of_package if result.result != KILLED]
    return "\n".join(lines), good


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Change operators of modules and report the changes that no test detects."
    )
    parser.add_argument("--per-module", type=int, default=20, help="maximum number of mutants per module (default: 20)")
    parser.add_argument(
        "--seed",
        default=f"{datetime.now(timezone.utc):%Y-%m-%d}",
        help="seed that selects the mutants (default: the date)",
    )
    parser.add_argument("--only", nargs="*", default=["sparklog/"], help="path prefixes of the modules to change")
    parser.add_argument("--report", type=Path, default=Path("build/mutants.txt"), help="file to write the report to")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="number of parallel processes")
    options = parser.parse_args()
    modules = [
        module
        for module in package_modules()
        if module.startswith(tuple(options.only)) and not module.startswith(EXCLUDED) and find_tests(module)
    ]
    with ProcessPoolExecutor(options.processes, initializer=import_libraries) as processes:
        futures = [processes.submit(try_module, module, options.per_module, options.seed) for module in modules]
        results = []
        for module, future in zip(modules, futures, strict=True):
            results += future.result()
            survivors = sum(result.module == module and result.result != KILLED for result in results)
            print(f"{module}: {survivors} survived", flush=True)
    report, good = report_of(results)
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(f"seed {options.seed}\n{report}\n")
    print(report)
    return 0 if good else 1


def import_libraries() -> None:
    """Import the libraries that most tests need, but no modules of sparklog, because mutants change these."""
    for library in ("pytest", "hypothesis", "numpy", "pyarrow", "pyarrow.compute", "pyarrow.dataset", "numba", "click"):
        importlib.import_module(library)


if __name__ == "__main__":
    sys.exit(main())
