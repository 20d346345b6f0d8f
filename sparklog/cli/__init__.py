"""The command line: arguments in, calls out, nothing else. It never starts Spark.

One module per group of commands (`topics`, `transactions`, `produce`, `consume`, `offsets`) over shared ones: `app`
(the tree of commands, exit codes, one-line errors), `options` (what an option is called and means), `places` (which
folder is it), `text` and `json_records` (records to lines and back), `lines` (input in runs of whole lines), `times`.
Heavy imports live inside the commands, so that help and shell completion come at once.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point of the `sparklog` script and of `python -m sparklog`; leaves by `SystemExit` with the exit code."""
    from sparklog.cli.app import app

    app(prog_name="sparklog")
