"""The command line: arguments in, calls out, nothing else. Only the jobs start Spark.

`commands` has a module for each group of commands. They share `app` (the tree of commands, exit codes, one-line
errors), `options` (names and meanings of options), `source` (folders that are opened), `text` and `json_records`
(records to lines and back) and `terminal` (output). Heavy imports live inside the commands, so that help and shell
completion come at once.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point of the `sparklog` script and of `python -m sparklog`; leaves by `SystemExit` with the exit code."""
    from sparklog.cli.app import app

    app(prog_name="sparklog")
