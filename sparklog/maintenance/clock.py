"""The store's clock, by which maintenance tells what is old, and what a dry run does where it cannot be asked."""

from __future__ import annotations

from sparklog.log.journal.clock import reading_clock_ms
from sparklog.log.journal.env import Env
from sparklog.storage.store import Store


def store_clock_ms(store: Store, env: Env, *, dry_run: bool) -> int:
    """Milliseconds since 1970 by the store.

    A local store tells by a file that it makes and removes. Where that is not allowed (a backup mounted read-only,
    somebody else's root) a dry run, which changes nothing, goes by this machine's clock; any other run raises
    `Unavailable`.
    """
    return reading_clock_ms(store, env) if dry_run else store.now_ms()
