"""Transactions over topics: the rows of one are visible in all of its topics, or in none.

`producer` begins, prepares, commits and aborts; `publishing` commits one whole batch; `listing` describes and aborts
transactions, also those that Kafka left open; `completion` is maintenance. Commits and readers use
`sparklog.log.decisions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparklog.lazy import lazy_names

if TYPE_CHECKING:
    from sparklog.transactions.producer import Transaction, TransactionalProducer, transactional
    from sparklog.transactions.publishing import publish

__all__ = ["Transaction", "TransactionalProducer", "publish", "transactional"]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(
        __name__,
        {
            "sparklog.transactions.producer": "Transaction TransactionalProducer transactional",
            "sparklog.transactions.publishing": "publish",
        },
    )
