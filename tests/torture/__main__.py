"""Command line of the torture test: `python -m tests.torture --minutes 60 --seed 1`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.torture.supervisor import ROLES, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5, help="how long the roles run (5)")
    parser.add_argument("--seed", type=int, default=1, help="of what is killed, stopped and written (1)")
    parser.add_argument("--pace", type=float, default=1, help="2: twice as many steps and kills in a second (1)")
    parser.add_argument("--folder", type=Path, help="a new folder for the run, which is kept; else a temporary one")
    parser.add_argument("--only", help="roles to run, with commas; else all")
    options = parser.parse_args()
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="torture-"))).resolve()
    only = {role.name for role in ROLES} if options.only is None else set(options.only.split(","))
    roles = [role for role in ROLES if role.name in only]
    sound = run(folder, minutes=options.minutes, seed=options.seed, pace=options.pace, roles=roles)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
