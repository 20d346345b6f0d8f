"""Simulated machines for the checks of doctor: programs on PATH, their output, and the free disk space."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from sparklog.doctor.checks import Machine, ProgramOutput
from sparklog.version import __version__

JAVA_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment\n'
GIB = 1 << 30


def python_says(**changes: object) -> str:
    """The output of a worker's Python for the question of doctor; None is a module that cannot be imported."""
    found = {
        "version": list(sys.version_info[:3]),
        "executable": "/venv/bin/python",
        "pyarrow": "20.0.0",
        "numba": "0.61.0",
        "sparklog": __version__,
    }
    return f"some warning\n{json.dumps({**found, **changes})}\n"


def machine(
    programs: Mapping[str, ProgramOutput],
    environ: Mapping[str, str] | None = None,
    free: tuple[int, int] = (50 * GIB, 100 * GIB),
) -> Machine:
    """Return a machine with `programs` by path. A name without a directory is in /bin, which is on PATH."""

    def which(name: str) -> str | None:
        path = name if "/" in name else f"/bin/{name}"
        return path if path in programs else None

    def run(command: Sequence[str]) -> ProgramOutput:
        return programs[command[0]]

    return Machine(environ or {}, which, run, lambda path: free)


HEALTHY = machine({"/bin/python3": ProgramOutput(0, python_says()), "/bin/java": ProgramOutput(0, JAVA_17)})
EMPTY = machine({})
