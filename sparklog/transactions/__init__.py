"""Transactions over topics: what is written in one is seen in all of its topics, or in none.

`producer` begins, prepares, commits and aborts; `publishing` does one whole batch at once; `listing` says how things
stand, also of transactions that Kafka left open (`kafka`); `completion` is what maintenance does. What commits and
readers need of it lies below, in `sparklog.log`: `decision` (the entries), `decision_log` (the protocol),
`decision_logs` (what a topic's open slices became).
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
            "sparklog.transactions.producer": ("Transaction", "TransactionalProducer", "transactional"),
            "sparklog.transactions.publishing": ("publish",),
        },
    )
