"""Transactions over topics: what is written in one is seen in all of its topics, or in none.

`producer` begins, prepares, commits and aborts; `publishing` does one whole batch at once; `listing` says how things
stand, also of transactions that Kafka left open (`kafka`); `completion` is what maintenance does. What commits and
readers need of it lies below, in `sparklog.log`: `decision` (the entries), `decision_log` (the protocol),
`decision_logs` (what a topic's open slices became).
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
