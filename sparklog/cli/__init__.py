"""The command line: it parses arguments, calls functions and prints their results. Only jobs start Spark.

Commands import heavy modules in functions, so that help and shell completion are fast.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the `sparklog` script or `python -m sparklog`; raises `SystemExit` with the exit code."""
    try:
        from sparklog.cli.app import app
    except KeyboardInterrupt:
        print("sparklog: interrupted; nothing was changed", file=sys.stderr)
        sys.exit(130)
    app(prog_name="sparklog")
