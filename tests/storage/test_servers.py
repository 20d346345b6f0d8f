"""The store tests and the probe with real servers, each of which is started once: see tests/README.md.

Servers that cannot contain a root must be rejected, regardless of the result of a single race.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sparklog.errors import BadRequest
from sparklog.log.journal.probe_results import ensure_probed
from sparklog.storage import Store, open_store
from sparklog.storage.probe import THREADS, examine, probe
from sparklog.testing.store_tests import StoreTests
from tests.support.servers.kinds import HOLD_A_ROOT, HOLD_NONE, Running, Start
from tests.support.servers.programs import Missing

pytestmark = pytest.mark.slow
TRIES = 30


@contextmanager
def started(start: Start, folder: Path) -> Iterator[Running]:
    """Return a running server and the environment of its clients. Skips the test if its program is missing."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(start(folder))
        except Missing as missing:
            pytest.skip(str(missing))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in server.environ.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="module", params=HOLD_A_ROOT)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with started(HOLD_A_ROOT[request.param], tmp_path_factory.mktemp(request.param)) as running:
        yield running


class TestServers(StoreTests):
    clock_step_ms = 1000

    @pytest.fixture
    def store(self, server: Running) -> Store:
        return open_store(server.bucket())

    def test_the_probe_passes_and_leaves_nothing(self, store: Store) -> None:
        report, outcomes = examine(store)
        assert [each.error for each in outcomes] == [None] * len(outcomes)
        assert report.rounds == 12
        assert report.clock_ahead_ms == 0
        assert list(store.list("")) == []

    def test_the_probe_result_is_stored(self, store: Store) -> None:
        ensure_probed(store)
        (verdict,) = store.list("")
        assert verdict.key.startswith("_probe/verdict-")


@pytest.mark.java
@pytest.mark.parametrize("name", HOLD_NONE)
def test_servers_that_lose_races_are_rejected(name: str, tmp_path: Path) -> None:
    with started(HOLD_NONE[name], tmp_path) as server:
        store = open_store(server.bucket())
        for _ in range(TRIES):
            with pytest.raises(BadRequest, match=rf"of {THREADS} threads .* expected 1"):
                probe(store)
        assert list(store.list("_probe/")) == []
