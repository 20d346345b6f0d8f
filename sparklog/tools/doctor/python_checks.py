"""Python: this one, its packages, its compiled kernels, and the one that Spark's workers use.

Spark starts its workers with PYSPARK_PYTHON (or `spark.pyspark.python` of spark-submit), else with plain `python3` of
the PATH, whatever Python the driver runs in; both must be of the same minor version.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata

from sparklog.tools.doctor.finding import FAIL, OK, WARN, Finding, Machine


LEAST = (3, 10)
_ASK = (
    "import json, sys; found = {'version': list(sys.version_info[:3]), 'executable': sys.executable}\n"
    "for name in ('pyarrow', 'numba', 'sparklog'):\n"
    "    try: found[name] = getattr(__import__(name), '__version__', '')\n"
    "    except Exception as error: found[name] = None; found['error'] = repr(error)\n"
    "print(json.dumps(found))"
)
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*([^;]*)(?:;.*extra\s*==\s*['\"](\w+)['\"])?")
_BOUND = re.compile(r"(>=|<=|==|!=|<|>)\s*([\d.]+)")


def check_python() -> Finding:
    """This interpreter."""
    found = f"Python {_dotted(sys.version_info[:3])} ({sys.executable})"
    if sys.version_info[:2] >= LEAST:
        return Finding("python", OK, found)
    return Finding("python", FAIL, f"{found}, expected {_dotted(LEAST)} or newer", "make PYTHON=<a newer python3>")


def check_workers(machine: Machine, spark_python: str | None, *, spark: bool) -> Finding:
    """The Python that Spark's workers will use. `spark_python`: what Spark's configuration names; `spark`: whether
    Spark is there at all, else a problem is a warning only.
    """
    bad = FAIL if spark else WARN
    source, program = "python3 on the PATH", "python3"
    if spark_python:
        source, program = "spark.pyspark.python", spark_python
    elif machine.environ.get("PYSPARK_PYTHON"):
        source, program = "PYSPARK_PYTHON", machine.environ["PYSPARK_PYTHON"]
    fix = f"export PYSPARK_PYTHON={sys.executable}"
    if spark_python:
        fix = f"spark.pyspark.python {sys.executable} in spark-defaults.conf"
    path = machine.which(program)
    if path is None:
        return Finding("workers' python", bad, f"{source} is {program}, which does not exist", fix)
    answer = machine.run([path, "-c", _ASK])
    try:
        found = json.loads(answer.text.splitlines()[-1]) if answer.code == 0 else None
    except (ValueError, IndexError):
        found = None
    if not isinstance(found, dict):
        said = " ".join(answer.text.split())[-120:]
        return Finding("workers' python", bad, f"{path} ({source}) does not run: {said}", fix)
    version = _dotted(found["version"])
    here = f"Python {version} ({found['executable']}, by {source})"
    if tuple(found["version"][:2]) != sys.version_info[:2]:
        mine = _dotted(sys.version_info[:2])
        return Finding("workers' python", bad, f"{here}, expected {mine} as the driver's: Spark refuses to mix", fix)
    missing = [name for name in ("sparklog", "pyarrow", "numba") if found[name] is None]
    if missing:
        return Finding("workers' python", bad, f"{here} cannot import {', '.join(missing)}: {found['error']}", fix)
    return Finding("workers' python", OK, f"{here} imports sparklog {found['sparklog']}, pyarrow {found['pyarrow']}")


def wanted_packages(requirements: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(package, range, extra; empty: always needed) of each of a distribution's requirements."""
    for text in requirements:
        match = _REQUIREMENT.match(text)
        if match is not None:
            yield match[1], match[2].strip().strip("()"), match[3] or ""


def out_of_range(version: str, wanted: str) -> bool:
    """Whether a version lies outside of `>=1.26,<3`; parts behind the numbers (rc1, .post1) do not count."""
    have = _numbers(version)
    for sign, text in _BOUND.findall(wanted):
        bound = _numbers(text)
        size = max(len(have), len(bound))
        left, right = (part + (0,) * (size - len(part)) for part in (have, bound))
        held = {">=": left >= right, "<=": left <= right, "==": left == right, "!=": left != right}
        if not held.get(sign, left < right if sign == "<" else left > right):
            return True
    return False


def check_packages() -> list[Finding]:
    """What sparklog needs, in the ranges it declares; of its extras what Spark needs."""
    try:
        requirements = metadata.requires("sparklog") or []
    except metadata.PackageNotFoundError:
        said = "sparklog is not installed, it runs from a folder: the versions of what it needs are not known"
        return [Finding("packages", WARN, said, f"{sys.executable} -m pip install -e '.[spark]'")]
    bad, there = [], []
    spark = None
    for name, wanted, extra in wanted_packages(requirements):
        if extra not in ("", "spark"):
            continue
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = None
        if extra == "spark":
            spark = _pyspark(name, version, wanted)
        elif version is None or out_of_range(version, wanted):
            bad.append(f"{name} {version or 'missing'} (expected {wanted})")
        else:
            there.append(f"{name} {version}")
    fix = f"{sys.executable} -m pip install --upgrade sparklog"
    found = Finding("packages", FAIL, ", ".join(bad), fix) if bad else Finding("packages", OK, ", ".join(there))
    return [found, spark] if spark is not None else [found]


def _pyspark(name: str, version: str | None, wanted: str) -> Finding:
    fix = f"{sys.executable} -m pip install 'sparklog[spark]'"
    if version is None:
        said = "no pyspark here: the command line and the Python API work, queries and distributed jobs do not"
        return Finding("pyspark", WARN, said, fix)
    if out_of_range(version, wanted):
        return Finding("pyspark", FAIL, f"{name} {version}, expected {wanted}", fix)
    return Finding("pyspark", OK, f"{name} {version}")


def check_kernels() -> Finding:
    """Whether compiled code is kept, so that nobody waits for the compiler."""
    fix = f"{sys.executable} -m sparklog.format.kernels.warm"
    try:
        from sparklog.format.kernels.native_kernels import CACHE_DIRECTORY
    except ImportError as error:
        return Finding("kernels", FAIL, f"they cannot be loaded: {error}", "see packages")
    if CACHE_DIRECTORY is None:
        said = "no folder to keep compiled kernels in: each process compiles them anew, half a minute"
        return Finding("kernels", WARN, said, "export TMPDIR=<a folder that can be written to>")
    compiled = sum(name.endswith(".nbc") for _, _, names in os.walk(CACHE_DIRECTORY) for name in names)
    if not compiled:
        return Finding("kernels", WARN, f"not compiled yet, kept in {CACHE_DIRECTORY}", fix)
    return Finding("kernels", OK, f"{compiled} compiled in {CACHE_DIRECTORY}")


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
