"""The CPU time of commands that do not read records, each in a new process.

    python benchmarks/bench_commands.py [--rounds 15] [--before CHECKOUT]

Prints the least CPU seconds (user and system) of all rounds, because other processes only add to it. With `--before`,
each round also runs the command with the package in another checkout. Compiled bytecode is used, as in an installed
package. It is stored in a temporary directory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import pyarrow as pa

import sparklog
from sparklog.groups.lag import Groups

TOPICS = 10
GIVEN_ROOT = (
    *("topics list", "topics describe events", "groups list", "configs describe events"),
    *("offsets events", "history events", "transactions list", "log-dirs", "jobs"),
)
COMMANDS = ("--help", "topics --help", "conf crontab", *GIVEN_ROOT)
PROGRAMS = {
    "python": ("-c", "pass"),
    "import numpy": ("-c", "import numpy"),
    "import click, numpy": ("-c", "import click, numpy"),
    **{command: ("-m", "sparklog", *command.split()) for command in COMMANDS},
}


def main() -> None:
    """Run each program in all checkouts in turn, after one run that compiles the bytecode."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--before", type=Path, help="another checkout, which is measured in the same rounds")
    chosen = arguments.parse_args()
    checkouts = [Path(__file__).resolve().parents[1], *([chosen.before.resolve()] if chosen.before else [])]
    with tempfile.TemporaryDirectory(prefix="sparklog-commands-") as folder:
        fill(f"{folder}/root")
        environ = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environ |= {"PYTHONPYCACHEPREFIX": f"{folder}/bytecode", "SPARKLOG_ROOT": f"{folder}/root"}
        for name, words in PROGRAMS.items():
            least = [float("inf")] * len(checkouts)
            for number in range(chosen.rounds + 1):
                for i, checkout in enumerate(checkouts):
                    seconds = cpu_seconds(words, checkout, environ)
                    least[i] = min(least[i], seconds) if number else least[i]
            print(f"{name:<26}", *(f"{seconds:6.3f}" for seconds in least), flush=True)


def fill(root: str) -> None:
    """Create a few small topics, and a consumer group that lags."""
    log = sparklog.open(root, create=True)
    topics = [log.create_topic(f"events{number or ''}", partitions=4) for number in range(TOPICS)]
    for _ in range(20):
        topics[0].append(pa.table({"key": [b"%04d" % i for i in range(40)], "value": [b"x" * 100] * 40}))
    Groups(log).group("late").alter({"events": dict.fromkeys(range(4), 0)})


def cpu_seconds(words: Sequence[str], checkout: Path, environ: Mapping[str, str]) -> float:
    """Run Python in a checkout, whose package it imports. Return the CPU seconds of the process."""
    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], cwd=checkout, check=True, stdout=subprocess.DEVNULL, env=environ)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
