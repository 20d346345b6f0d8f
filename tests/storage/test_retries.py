"""Pauses and budgets of retried requests."""

from __future__ import annotations

import pytest

from sparklog.storage.retries import BUSY_BUDGET_S, LONGEST_PAUSE_S, ONCE, Clock, RetryPolicy
from tests.support.pauses import Pauses


def test_pauses_grow_and_end_within_the_budget() -> None:
    pauses = Pauses()
    backoff = pauses.policy().backoff()
    while backoff.wait():
        pass
    assert pauses.made[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert max(pauses.made) == LONGEST_PAUSE_S
    assert BUSY_BUDGET_S - LONGEST_PAUSE_S < pauses.seconds <= BUSY_BUDGET_S


def test_the_duration_of_requests_counts_towards_the_budget() -> None:
    seconds = 0.0
    made: list[float] = []
    backoff = RetryPolicy(10, Clock(lambda: seconds, made.append, lambda: 0.5)).backoff()
    assert backoff.wait()
    seconds = 9.9
    assert not backoff.wait()
    assert len(made) == 1


@pytest.mark.parametrize(("policy", "calls"), [(ONCE, 1), (Pauses().policy(1.0), 4)])
def test_the_last_error_is_raised_unchanged(policy: RetryPolicy, calls: int) -> None:
    errors = [OSError(str(number)) for number in range(10)]
    left = iter(errors)

    def send() -> None:
        raise next(left)

    with pytest.raises(OSError, match=str(calls - 1)) as caught:
        policy.call(send, lambda error: True)
    assert caught.value is errors[calls - 1]


def test_a_permanent_error_is_raised_immediately() -> None:
    pauses = Pauses()
    with pytest.raises(ZeroDivisionError):
        pauses.policy().call(lambda: 1 // 0, lambda error: isinstance(error, OSError))
    assert pauses.made == []
