"""A process to kill: `python -m tests.transactions.writing_process <root> <id> <first value>`.

It writes a transaction across topics `a` and `b` for each line on stdin, and prints a line for each committed
transaction.
"""

from __future__ import annotations

import sys

import sparklog
from tests.support.records import rows


def main(root: str, transactional_id: str, first: int) -> None:
    producer = sparklog.transactional(root, transactional_id)
    for value, _ in enumerate(sys.stdin, first):
        with producer.begin() as transaction:
            for name in ("a", "b"):
                transaction.append(name, rows(f"{transactional_id} {value}"))
        print(value, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
