"""The command line. Commands parse their arguments, call functions of the library, and print the results. Only jobs
start Spark.

Heavy modules are imported inside the functions of commands, so that help and shell completion are fast.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the `sparklog` script or `python -m sparklog`. Raises `SystemExit` with the exit code."""
    try:
        from sparklog.cli.app import app
    except KeyboardInterrupt:
        print("sparklog: interrupted; nothing was changed", file=sys.stderr)
        sys.exit(130)
    app(prog_name="sparklog")
