"""The map of the package: which tests hold which module. `python -m tests.module_map` writes `tests/MAP.md`.

A module's tests are those named for it (`test_<module>.py`) and those beside them that import names of it, the ones
that import little else first. What no test imports by itself is held by tests of what uses it: `INDIRECT` names them.
`make mutants` runs the tests of this map.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.support.sources import REPOSITORY, nodes, text

MAP = REPOSITORY / "tests" / "MAP.md"
MOST = 4
"""Tests of one module that are only known by their imports, at most."""

INDIRECT: Mapping[str, tuple[str, ...]] = {
    "sparklog/__main__.py": ("tests/cli/test_process.py",),
    "sparklog/cli/commands/health.py": (
        "tests/cli/test_report.py",
        "tests/cli/test_verify.py",
        "tests/cli/test_metrics.py",
        "tests/cli/test_jobs.py",
    ),
    "sparklog/cli/commands/kafka_logs.py": ("tests/cli/test_import.py", "tests/cli/test_export.py"),
    "sparklog/cli/commands/storage.py": ("tests/cli/test_log_dirs.py", "tests/cli/test_delete_records.py"),
    **dict.fromkeys(
        (f"sparklog/datasource/{name}.py" for name in ("data_loss", "hidden_offsets", "planned_ranges")),
        ("tests/datasource/test_stream_plan.py",),
    ),
    "sparklog/format/avro.py": ("tests/format/test_values.py", "tests/cli/test_values.py"),
    "sparklog/format/legacy/legacy_kernels.py": ("tests/format/test_legacy.py",),
    "sparklog/format/legacy/old_messages.py": ("tests/format/test_legacy.py", "tests/kafka/test_legacy.py"),
    "sparklog/format/new_arrays.py": ("tests/format/test_round_trips.py", "tests/format/test_filter_batches.py"),
    "sparklog/log/read/auxiliary_files.py": (
        "tests/log/read/test_key_filters.py",
        "tests/log/read/test_sealed_seeks.py",
    ),
    "sparklog/log/topic/prepared_appends.py": (
        "tests/log/topic/test_append_calls.py",
        "tests/log/topic/test_commit_queue.py",
    ),
    "sparklog/log/topic/expiring.py": ("tests/cli/test_expiring.py",),
    "sparklog/console/schema_registry.py": ("tests/cli/test_schema_registry.py",),
    "sparklog/schemas/disk_cache.py": ("tests/schemas/test_registry.py",),
    "sparklog/jobs/decoded_rows.py": ("tests/datasource/test_job_delta.py",),
    "sparklog/jobs/stop_signals.py": ("tests/tables/test_to_iceberg.py",),
    "sparklog/transactions/replay_checks.py": ("tests/datasource/test_tasks_in_python.py",),
    "sparklog/schemas/opening.py": ("tests/schemas/test_formats.py", "tests/format/test_values.py"),
    **dict.fromkeys(
        (
            f"sparklog/clients/consumer/{name}.py"
            for name in (
                *(
                    "consumer_options",
                    "fetcher",
                    "heartbeat_thread",
                    "member",
                    "offset_commits",
                    "partition_reader",
                    "positions",
                    "rebalances",
                    "joined_member",
                ),
                "subscribed_topics",
            )
        ),
        (
            *("tests/clients/test_consumer.py", "tests/clients/test_consumer_reading.py"),
            "tests/clients/test_consumer_sharing.py",
        ),
    ),
    "sparklog/storage/exit_hooks.py": ("tests/clients/producer/test_pressure.py", "tests/clients/test_consumer.py"),
    "sparklog/kafka/importing/plan.py": ("tests/kafka/test_importing.py",),
    "sparklog/kafka/importing/segment.py": ("tests/kafka/test_importing.py", "tests/kafka/test_import_undecodable.py"),
    "sparklog/kafka/in_place/partition_state.py": ("tests/kafka/test_recovery.py", "tests/kafka/test_start_up.py"),
    "sparklog/kafka/in_place/transaction_state.py": (
        "tests/kafka/test_lost_markers.py",
        "tests/kafka/test_snapshots.py",
    ),
    "sparklog/log/read/aborted.py": ("tests/log/read/test_scan_imported.py",),
    "sparklog/log/read/segment_seek.py": (
        "tests/log/read/test_scan_reading.py",
        "tests/log/read/test_time_lookup.py",
    ),
    "sparklog/log/read/topic_reader.py": ("tests/test_api.py", "tests/log/read/test_scan_reading.py"),
    "sparklog/log/state/description.py": ("tests/log/topic/test_root_topic.py", "tests/cli/test_configs.py"),
    "sparklog/log/write/kafka_markers.py": ("tests/cli/test_transactions.py",),
    "sparklog/storage/cloud_errors.py": (
        "tests/storage/test_misbehaving_servers.py",
        "tests/storage/test_object_store.py",
    ),
    "sparklog/tools/inspection/batches.py": (
        "tests/tools/inspection/test_root.py",
        "tests/tools/inspection/test_kafka_files.py",
    ),
    "sparklog/tools/perf.py": ("tests/cli/test_perf.py",),
    "sparklog/storage/wrapper_store.py": ("tests/maintenance/test_throttle.py",),
    "sparklog/view.py": ("tests/kafka/test_directory.py",),
    "sparklog/serve/apis/acls.py": ("tests/serve/test_acls.py",),
    "sparklog/serve/apis/sasl.py": ("tests/serve/test_users.py",),
    "sparklog/serve/apis/topics.py": ("tests/serve/test_producing.py",),
    "sparklog/serve/apis/groups.py": ("tests/serve/test_groups.py",),
    "sparklog/serve/apis/metadata.py": ("tests/serve/test_reading.py",),
    "sparklog/serve/apis/produce.py": ("tests/serve/test_producing.py",),
    "sparklog/serve/batch_file.py": ("tests/serve/test_producing.py", "tests/serve/test_producer_sequences.py"),
    "sparklog/serve/authorized_operations.py": ("tests/serve/test_requests.py",),
    "sparklog/serve/new_topics.py": ("tests/serve/test_like_a_broker.py",),
    "sparklog/cli/header_filter.py": ("tests/cli/test_wrong_inputs.py",),
    "sparklog/groups/group_journal.py": ("tests/groups/test_group.py", "tests/groups/test_state.py"),
    "sparklog/serve/shared_members.py": ("tests/serve/test_shared_groups.py",),
    "sparklog/tools/inspection/columns.py": (
        "tests/tools/inspection/test_root.py",
        "tests/tools/inspection/test_dump_batches.py",
    ),
    "sparklog/tools/repair/commit_fixes.py": ("tests/tools/repair/test_lost_commits.py",),
    "sparklog/tools/verification/unreferenced.py": ("tests/tools/verification/test_damage.py",),
    "sparklog/tools/verification/defaults_copy.py": ("tests/log/topic/test_lost_defaults.py",),
}
"""Module -> tests that reach it through others, for modules that no test imports."""


@cache
def package_modules() -> tuple[str, ...]:
    """Files of the package that hold code, as `sparklog/log/read/fetch.py`."""
    files = sorted((REPOSITORY / "sparklog").rglob("*.py"))
    return tuple(file.relative_to(REPOSITORY).as_posix() for file in files if file.name != "__init__.py")


def _imported(source: str) -> Iterator[str]:
    """Dotted names of sparklog that a file imports, and those in texts: `setattr("sparklog.storage.local.x", ...)`."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("sparklog."):
            yield node.value


@cache
def _shares() -> Mapping[str, Mapping[str, float]]:
    """Module -> test that imports it -> the share of that test's names of sparklog that are the module's."""
    modules = {module.removesuffix(".py").replace("/", "."): module for module in package_modules()}
    shares: dict[str, dict[str, float]] = defaultdict(dict)
    for file in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        names = [name for name in _imported(text(file)) if name.startswith("sparklog.")]
        for name in names:
            module = modules.get(name) or modules.get(name.rpartition(".")[0])
            if module is not None:
                test = file.relative_to(REPOSITORY).as_posix()
                shares[module][test] = shares[module].get(test, 0) + 1 / len(names)
    return shares


def find_tests(module: str) -> list[str]:
    """Tests that hold a module, those named for it first; none where nothing is known."""
    room = Path(module).parent.relative_to("sparklog")
    folders = [f"tests/{folder}/".replace("/./", "/") for folder in (room, *room.parents)]
    named = [f"{folder}test_{Path(module).stem}.py" for folder in folders]
    by_share = sorted(_shares().get(module, {}).items(), key=lambda item: (-item[1], item[0]))
    beside = [test for test, _ in by_share if test.startswith(folders[0])]
    others = [test for test, _ in by_share if test not in beside]
    tests = [test for test in named if (REPOSITORY / test).exists()]
    tests += [test for test in (beside or others) if test not in tests][:MOST]
    return tests + [test for test in INDIRECT.get(module, ()) if test not in tests]


def map_text() -> str:
    """The map as a page: a table for each folder of the package."""
    folders: dict[str, list[str]] = defaultdict(list)
    for module in package_modules():
        path = Path(module)
        names = " ".join(f"`{test.removeprefix('tests/').removesuffix('.py')}`" for test in find_tests(module))
        folders[path.parent.as_posix()].append(f"| `{path.name}` | {names} |")
    parts = [f"## {folder}\n\n| module | tests |\n|---|---|\n" + "\n".join(rows) for folder, rows in folders.items()]
    about = (
        "Which tests hold which module: paths below `tests/`, without `.py`. `python -m tests.module_map` writes this\n"
        "page, and `tests/test_module_map.py` keeps it true. `make mutants` runs these tests on changed modules."
    )
    return f"# Map of the tests\n\n{about}\n\n" + "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    MAP.write_text(map_text())
