"""Checks of the Python programs that Spark starts.

Spark starts Python for two purposes, which its documentation does not distinguish (see `sparklog.datasource.session`):
for tasks of UDFs and RDDs, and for data sources that are not registered by the program. Both Pythons must have the same
minor version as the driver. If neither is configured, the commands of sparklog and `sparklog.configure` use their own
Python, so a wrong `python3` is only reported as a warning.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from sparklog.datasource.session import LAUNCHER, workers_python
from sparklog.doctor.checks import FAIL, OK, WARN, Check, Machine

_SCRIPT = (
    "import json, sys; facts = {'version': list(sys.version_info[:3]), 'executable': sys.executable}\n"
    "for name in ('pyarrow', 'numba', 'sparklog'):\n"
    "    try: facts[name] = getattr(__import__(name), '__version__', '')\n"
    "    except Exception as error: facts[name] = None; facts['error'] = repr(error)\n"
    "print(json.dumps(facts))"
)
_START_COST = f"{LAUNCHER} saves 1 s of CPU time at each of seven starts before the first row"
WORKERS, DATA_SOURCE = "workers' python", "data source's python"


class NamedPython(NamedTuple):
    """A Python program that Spark starts, and the setting that selects it, or None if no setting selects it."""

    program: str
    setting: str | None

    @property
    def source(self) -> str:
        return self.setting or "python3 on the PATH"


def _first(values: Mapping[str, str | None], *settings: str) -> NamedPython:
    for setting in settings:
        if program := values.get(setting):
            return NamedPython(program, setting)
    return NamedPython("python3", None)


def check_workers(machine: Machine, spark_python: str | None, *, spark: bool) -> list[Check]:
    """Check the Python of tasks and, if it is different, the Python of the data source.

    Args:
        machine: this host.
        spark_python: `spark.pyspark.python` in Spark's configuration.
        spark: True if Spark is installed. If False, a problem is only a warning.
    """
    values = {**machine.environ, "spark.pyspark.python": spark_python}
    tasks = _first(values, "spark.pyspark.python", "PYSPARK_PYTHON")
    data_source = _first(values, "PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
    findings = [_check(machine, tasks, spark=spark)]
    if data_source.program != tasks.program:
        findings.append(_check_data_source(machine, data_source, tasks))
    return findings


def _check(machine: Machine, choice: NamedPython, *, spark: bool) -> Check:
    fix = f"export PYSPARK_PYTHON={workers_python()}"
    if choice.setting == "spark.pyspark.python":
        fix = f"spark.pyspark.python {workers_python()} in spark-defaults.conf"
    problem, description, executable = _describe(machine, choice)
    if problem:
        if choice.setting is None:
            others = f"sparklog's commands and programs that call sparklog.configure use {sys.executable}"
            problem += f"; spark-submit and pyspark would use it. {others}"
        return Check(WORKERS, FAIL if spark and choice.setting else WARN, problem, fix)
    launcher = os.path.join(os.path.dirname(executable), LAUNCHER)
    if choice.setting and os.path.basename(choice.program) != LAUNCHER and machine.which(launcher) is not None:
        return Check(WORKERS, WARN, f"{description} compiles pyspark at each start: {_START_COST}", fix)
    return Check(WORKERS, OK, description)


def _check_data_source(machine: Machine, choice: NamedPython, tasks: NamedPython) -> Check:
    problem, description, _ = _describe(machine, choice)
    message = (
        f"{problem or description}; it plans, reads and writes in programs that call neither sparklog.configure nor "
        f"sparklog.register, instead of {tasks.program} ({tasks.source})"
    )
    fix = f"unset PYSPARK_DRIVER_PYTHON and export PYSPARK_PYTHON={tasks.program}, or call sparklog.register(spark)"
    return Check(DATA_SOURCE, WARN, message, fix)


def _describe(machine: Machine, choice: NamedPython) -> tuple[str, str, str]:
    """Return the problem of a Python, its description, and the path of its executable. Values that do not apply are
    empty.
    """
    path = machine.which(choice.program)
    if path is None:
        return f"{choice.source} is {choice.program}, which does not exist", "", ""
    output = machine.run([path, "-c", _SCRIPT])
    try:
        worker = json.loads(output.text.splitlines()[-1]) if output.code == 0 else None
    except (ValueError, IndexError):
        worker = None
    if not isinstance(worker, dict):
        return f"{path} ({choice.source}) does not run: {' '.join(output.text.split())[-120:]}", "", ""
    version, required = (".".join(map(str, numbers)) for numbers in (worker["version"], sys.version_info[:2]))
    description = f"Python {version} ({worker['executable']}, by {choice.source})"
    if tuple(worker["version"][:2]) != sys.version_info[:2]:
        return (
            (f"{description}, expected {required} as in the driver, because Spark does not support different versions"),
            "",
            "",
        )
    missing = [name for name in ("sparklog", "pyarrow", "numba") if worker[name] is None]
    if missing:
        return f"{description} cannot import {', '.join(missing)}: {worker['error']}", "", ""
    packages = f"sparklog {worker['sparklog']}, pyarrow {worker['pyarrow']}"
    return "", f"{description} imports {packages}", worker["executable"]
