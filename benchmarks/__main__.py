"""All benchmarks, one after the other: `python -m benchmarks`; one of them: `python -m benchmarks NAME [ARGUMENT]...`.

Names are those of the programs here without `bench_`. Each says in its docstring what it takes. Those that need another
Spark than the rest, or a long time, are run by their names only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAMS = (
    *("codec", "log", "table", "maintenance", "producer", "members", "many", "spark", "batches"),
    *("latency", "serve"),
)
BY_NAME = (
    *PROGRAMS,
    *("commands", "copies", "delta", "memory", "peers", "day", "year", "hundred_million", "ratios", "sizes"),
)
REPOSITORY = Path(__file__).resolve().parents[1]


def main() -> None:
    """Stop at the first that fails."""
    name, *arguments = sys.argv[1:] or [""]
    if name and name not in BY_NAME:
        raise SystemExit(f"expected one of {', '.join(BY_NAME)}, or none for all of them, found {name!r}")
    for program in [name] if name else PROGRAMS:
        print(f"\n== {program}", flush=True)
        # Of this checkout, whichever is installed.
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
        command = [sys.executable, str(REPOSITORY / "benchmarks" / f"bench_{program}.py"), *arguments]
        done = subprocess.run(command, env=environ)
        if done.returncode:
            raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
