"""`python -m sparklog`: the same as the `sparklog` command."""

from __future__ import annotations

from sparklog.cli import main

if __name__ == "__main__":
    main()
