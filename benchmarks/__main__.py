"""All benchmarks, one after the other: `python -m benchmarks`; one of them: `python -m benchmarks NAME [ARGUMENT]...`.

Names are those of the programs here without `bench_`. Each says in its docstring what it takes. `delta` is run by its
name only: it needs another Spark than the rest.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAMS = ("codec", "log", "table", "maintenance", "producer", "members", "many", "spark", "cold", "latency", "serve")
BY_NAME = (*PROGRAMS, "delta")


def main() -> None:
    """Stop at the first that fails."""
    name, *arguments = sys.argv[1:] or [""]
    if name and name not in BY_NAME:
        raise SystemExit(f"expected one of {', '.join(BY_NAME)}, or none for all of them, found {name!r}")
    for program in [name] if name else PROGRAMS:
        print(f"\n== {program}", flush=True)
        done = subprocess.run([sys.executable, str(Path(__file__).parent / f"bench_{program}.py"), *arguments])
        if done.returncode:
            raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
