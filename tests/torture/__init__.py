"""A torture test: every role of a root at once, each a process that is killed and stopped at random.

    python -m tests.torture --minutes 60 --seed 1

Writers, producers, transactions, consumer groups, servers, Spark, maintenance, repairs and backups work on one root,
some on the disk itself and some through a mount that caches names and attributes. Each role writes what it tries and
what was acknowledged into a ledger (`process`); readers check while the others write (`readers`), and `checks` compares
the root with the ledgers at the end.
"""
