"""Transactions over topics: the rows of one are visible in all of its topics, or in none.

`producer` begins, prepares, commits and aborts; `publishing` commits one whole batch; `listing` describes and aborts
transactions, also those that Kafka left open; `completion` is maintenance. Commits and readers use
`sparklog.log.decisions`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparklog.transactions.producer import Transaction, TransactionalProducer, transactional
    from sparklog.transactions.publishing import publish

_HOME = {
    "Transaction": "producer",
    "TransactionalProducer": "producer",
    "transactional": "producer",
    "publish": "publishing",
}
__all__ = ["Transaction", "TransactionalProducer", "publish", "transactional"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'sparklog.transactions' has no attribute {name!r}")
    return getattr(import_module(f"sparklog.transactions.{_HOME[name]}"), name)
