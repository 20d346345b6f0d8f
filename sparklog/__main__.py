"""Run the `sparklog` command with `python -m sparklog`."""

from __future__ import annotations

from sparklog.cli import main

if __name__ == "__main__":
    main()
