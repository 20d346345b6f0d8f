"""All benchmarks, one after the other: `python -m benchmarks`; one of them: `python -m benchmarks NAME [ARGUMENT]...`.

Names are those of the programs here without `bench_`. Each says in its docstring what it takes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAMS = ("codec", "log", "table", "maintenance", "spark", "cold", "latency")


def main() -> None:
    """Stop at the first that fails."""
    name, *arguments = sys.argv[1:] or [""]
    if name and name not in PROGRAMS:
        raise SystemExit(f"expected one of {', '.join(PROGRAMS)}, or none for all of them, found {name!r}")
    for program in [name] if name else PROGRAMS:
        print(f"\n== {program}", flush=True)
        done = subprocess.run([sys.executable, str(Path(__file__).parent / f"bench_{program}.py"), *arguments])
        if done.returncode:
            raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
