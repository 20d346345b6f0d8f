"""Jobs that are started with spark-submit, cron or the command line: maintenance, verification, streaming, and copies
from and to Kafka and Delta.
"""

from __future__ import annotations

from collections.abc import Sequence

CHECKPOINT = "--checkpoint"
"""The option with which `to-delta` is a streaming query of Spark."""


def job_module(name: str, words: Sequence[str]) -> str:
    """Return the name of the module of a job for these arguments, without the name of this package."""
    module = name.replace("-", "_")
    if name == "to-delta" and not any(word.partition("=")[0] == CHECKPOINT for word in words):
        module += "_without_spark"
    return module
