"""A torture test with all roles of a root, each in a process that is killed and suspended at random.

    python -m tests.torture --minutes 60 --seed 1

Writers, producers, transactions, consumer groups, servers, Spark, maintenance, repairs and backups work on one root,
some directly on the disk and some through a mount that caches names and attributes. Each role writes its attempts and
the acknowledgments into a ledger (`process`). Readers check the root during the test (`readers`), and `checks` compares
the root with the ledgers at the end.
"""
