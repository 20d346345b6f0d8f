"""The command line: arguments in, calls out, nothing else. Only the jobs start Spark.

Heavy imports live inside the commands, so that help and shell completion come at once.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of the `sparklog` script and of `python -m sparklog`; leaves by `SystemExit` with the exit code."""
    try:
        from sparklog.cli.app import app
    except KeyboardInterrupt:
        print("sparklog: interrupted; nothing was changed", file=sys.stderr)
        sys.exit(130)
    app(prog_name="sparklog")
