"""All benchmarks, one after the other: `python -m benchmarks`. Each also runs by itself and says how."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAMS = ("bench_codec.py", "bench_log.py", "bench_maintenance.py", "bench_spark.py", "bench_cold.py")


def main() -> None:
    """Stop at the first that fails."""
    for program in PROGRAMS:
        print(f"\n== {program}", flush=True)
        subprocess.run([sys.executable, str(Path(__file__).parent / program)], check=True)


if __name__ == "__main__":
    main()
