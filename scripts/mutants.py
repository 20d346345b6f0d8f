"""Mutants: change one operator of a module at a time, run its tests, and list the changes that no test notices.

    python -m scripts.mutants [--per-module 20] [--seed DATE] [--only sparklog/log/read] [--report FILE] [--processes 2]

A mutant is a comparison turned round or made strict, `and` for `or`, `+` for `-`, a number plus one, a condition
negated, or a `return` of nothing. The tests are those of `tests/module_map.py`, without Spark, Java and sweeps. Each
room has a bound, the share of its mutants that must be killed; the command fails below it. Mutants are drawn by the
seed, so nightly runs see others each night and any run can be repeated.

How: a process imports the libraries once and forks for each mutant. The child sees a copy of the checkout in which the
one file is changed. Kernels are left out: each mutant of one would be compiled first.
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
"""Room -> the share of its mutants that tests must kill; the empty name is for rooms that have no line."""
LEFT_OUT = ("sparklog/format/kernels/", "sparklog/format/legacy/legacy_kernels.py", "sparklog/testing/")
MARKS = "not slow and not sweep and not spark and not java"
SLOWEST_SECONDS = 60
"""A mutant whose tests run longer than this beyond three times their usual time counts as killed: it hangs."""
PASSED, NO_TESTS, HANGS = 0, 5, -1
"""Exit codes of pytest, and what stands for one where tests do not end."""
KILLED, ALIVE, UNTESTED = "killed", "alive", "tests fail without a change"

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
    """A module with one change: where, what, and its whole new source."""

    module: str
    line: int
    change: str
    source: str

    @property
    def title(self) -> str:
        return f"{self.module}:{self.line} {self.change}"


def room_of(module: str) -> str:
    """`sparklog/log/read/fetch.py` -> `log/read`; modules of `sparklog/` itself have the empty name."""
    return "/".join(Path(module).parent.parts[1:3])


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """For one node: an expression, what stands in its place, and a name of the change."""
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
    """Nodes of functions that run: no annotations, no text of errors, nothing inside of f-strings."""
    waiting = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    waiting = [statement for function in waiting for statement in function.body]  # type: ignore[misc]
    seen: set[int] = set()
    while waiting:
        node: ast.AST = waiting.pop()
        left_out = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Raise, ast.JoinedStr, ast.AnnAssign)
        if id(node) not in seen and not isinstance(node, left_out):
            seen.add(id(node))
            yield node
            waiting += ast.iter_child_nodes(node)  # type: ignore[arg-type]


def mutants_of(module: str, source: str, number: int, rng: random.Random) -> list[Mutant]:
    """Draw mutants of a module, at most so many, in the order of their lines."""
    changes = [change for node in _code_nodes(ast.parse(source)) for change in _changes(node)]
    drawn = rng.sample(changes, min(number, len(changes)))
    mutants = [Mutant(module, old.lineno, name, _replaced(source, old, new)) for old, new, name in drawn]
    return sorted(mutants, key=lambda mutant: mutant.line)


def _replaced(source: str, old: ast.expr, new: ast.expr) -> str:
    """The source with the text of one expression replaced, all else as it stands."""
    assert old.end_lineno is not None
    assert old.end_col_offset is not None
    lines = source.encode().splitlines(keepends=True)
    begin = sum(map(len, lines[: old.lineno - 1])) + old.col_offset
    end = sum(map(len, lines[: old.end_lineno - 1])) + old.end_col_offset
    text = f"({ast.unparse(ast.fix_missing_locations(new))})"
    whole = source.encode()
    return (whole[:begin] + text.encode() + whole[end:]).decode()


def copied_checkout(folder: Path) -> Path:
    """A copy of what tests need, in which files can be changed; tests, examples and docs are links."""
    shutil.copytree(REPOSITORY / "sparklog", folder / "sparklog")
    for path in REPOSITORY.iterdir():
        if path.name not in ("sparklog", "build") and not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    return folder


def run_tests(checkout: Path, tests: Sequence[str], seconds: float) -> tuple[int, float]:
    """Run tests over a copy, in a fork of this process, which has the libraries: pytest's exit code, and seconds."""
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        _be_the_tests(checkout, tests)
    while time.monotonic() - begin < seconds:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), time.monotonic() - begin
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return HANGS, seconds


def _be_the_tests(checkout: Path, tests: Sequence[str]) -> None:
    """Run pytest over the copy, and leave with its exit code. Nothing of the checkout itself may be imported."""
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
class Outcome:
    """Verdict of a module's tests on one mutant; `title` is the module's where they fail without a change."""

    module: str
    title: str
    result: str


def try_module(module: str, number: int, seed: str) -> list[Outcome]:
    """Run the tests of a module on its mutants, one after the other."""
    source = (REPOSITORY / module).read_text()
    tests = find_tests(module)
    mutants = mutants_of(module, source, number, random.Random(f"{seed} {module}"))
    with tempfile.TemporaryDirectory(prefix="sparklog-mutants-") as folder:
        checkout = copied_checkout(Path(folder))
        code, usual = run_tests(checkout, tests, 600)
        if code == NO_TESTS:  # all of them need Spark or Java
            return []
        if code != PASSED:
            return [Outcome(module, module, UNTESTED)]
        outcomes = []
        for mutant in mutants:
            (checkout / module).write_text(mutant.source)
            code, _ = run_tests(checkout, tests, 3 * usual + SLOWEST_SECONDS)
            outcomes.append(Outcome(module, mutant.title, ALIVE if code == PASSED else KILLED))
        return outcomes


def report_of(outcomes: Sequence[Outcome]) -> tuple[str, bool]:
    """The report, and whether each room is above its bound."""
    rooms: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        rooms[room_of(outcome.module)].append(outcome)
    lines, good = [], True
    for room, of_room in sorted(rooms.items()):
        killed = sum(outcome.result == KILLED for outcome in of_room)
        bound = BOUNDS.get(room, BOUNDS[""])
        above = killed >= bound * len(of_room) and not any(outcome.result == UNTESTED for outcome in of_room)
        good &= above
        share = f"{killed} of {len(of_room)} killed ({killed / len(of_room):.0%}, at least {bound:.0%})"
        lines.append(f"{room or 'sparklog'}: {share}{'' if above else ': BELOW ITS BOUND'}")
        lines += [f"  {outcome.result}: {outcome.title}" for outcome in of_room if outcome.result != KILLED]
    return "\n".join(lines), good


def main() -> int:
    parser = argparse.ArgumentParser(description="Change modules and see whether their tests notice.")
    parser.add_argument("--per-module", type=int, default=20)
    parser.add_argument("--seed", default=f"{datetime.now(timezone.utc):%Y-%m-%d}", help="which mutants are drawn")
    parser.add_argument("--only", nargs="*", default=["sparklog/"], help="modules whose path begins so")
    parser.add_argument("--report", type=Path, default=Path("build/mutants.txt"))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    modules = [
        module
        for module in package_modules()
        if module.startswith(tuple(chosen.only)) and not module.startswith(LEFT_OUT) and find_tests(module)
    ]
    with ProcessPoolExecutor(chosen.processes, initializer=import_libraries) as processes:
        futures = [processes.submit(try_module, module, chosen.per_module, chosen.seed) for module in modules]
        outcomes = []
        for module, future in zip(modules, futures, strict=True):
            outcomes += future.result()
            alive = sum(outcome.module == module and outcome.result != KILLED for outcome in outcomes)
            print(f"{module}: {alive} alive", flush=True)
    report, good = report_of(outcomes)
    chosen.report.parent.mkdir(parents=True, exist_ok=True)
    chosen.report.write_text(f"seed {chosen.seed}\n{report}\n")
    print(report)
    return 0 if good else 1


def import_libraries() -> None:
    """Import what nearly all tests import, once: a child that forks has it. Nothing of sparklog, which is changed."""
    for library in ("pytest", "hypothesis", "numpy", "pyarrow", "pyarrow.compute", "pyarrow.dataset", "numba", "click"):
        importlib.import_module(library)


if __name__ == "__main__":
    sys.exit(main())
