"""Which heavy libraries commands may import. Each of them takes at least a tenth of a second of CPU time.

One process runs all commands, so that it is started only once. It forks for commands with the same allowance, which run
one after the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.groups.lag import Groups
from tests.cli.test_every_command import commands

REPOSITORY = Path(__file__).parents[2]
MAINTENANCE = RETAIN, CLEANER = "sparklog.retention.retain", "sparklog.compaction.cleaner"
"""The code of jobs, which imports most of the package. Commands that only show jobs do not import it."""
HEAVY = (
    *("numpy", "pyarrow", "numba", "pandas", "pyspark", "obstore", "hdfs_native", "asyncio", "jinja2"),
    *("zstandard", "lz4", "snappy", "fastavro", "pydantic", "rich"),
    *MAINTENANCE,
)
SMALL = (
    *("sparklog.log.state.commit_intents", "sparklog.log.write.append_target", "sparklog.log.topic.backup_manifest"),
    *("sparklog.log.read.fetch", "sparklog.storage.probe", "hashlib", "importlib.metadata"),
)
"""Modules that take at most a hundredth of a second each. Commands that only list do not import them."""
PROGRAM = """
import json, os, signal, socket, struct, sys, tempfile, threading
os.environ.pop("SPARKLOG_ROOT", None)
from sparklog.cli import main
from sparklog.cli.app import app

class Serving:
    # Standard output of a server: it is asked for its versions and topics, and ended then.
    def write(self, text):
        if text.startswith("serving "):
            threading.Thread(target=self.ask, args=(int(text.rpartition(":")[2]),)).start()
    def flush(self):
        pass
    def ask(self, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            for request in (struct.pack(">hhih", 18, 0, 1, -1), struct.pack(">hhihi", 3, 1, 2, -1, -1)):
                client.sendall(struct.pack(">i", len(request)) + request)
                size, = struct.unpack(">i", client.recv(4, socket.MSG_WAITALL))
                assert client.recv(size, socket.MSG_WAITALL)
        os.kill(os.getpid(), signal.SIGTERM)

def run(words, text):
    sys.argv = ["sparklog", *words]
    lines = tempfile.TemporaryFile()
    lines.write(text.encode())
    lines.seek(0)
    os.dup2(lines.fileno(), 0)
    if words[0] == "serve" and "--help" not in words:
        sys.stdout = Serving()
    try:
        main()
    except SystemExit as end:
        assert not end.code, words

heavy, groups = json.load(sys.stdin)
for lines in groups:
    if not os.fork():
        try:
            for words, text in lines:
                run(words, text)
            print("LOADED", json.dumps([name for name in heavy if name in sys.modules]), file=sys.stderr, flush=True)
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(1)
    assert not os.waitstatus_to_exitcode(os.wait()[1]), lines
"""
NUMBERS = ("numpy",)
LISTS = (
    *("topics list ROOT", "topics list --json ROOT", "groups list ROOT", "history orders ROOT"),
    *("configs describe orders ROOT", "offsets orders ROOT"),
)
ARROW = ("numpy", "pyarrow")
RECORDS = (*ARROW, "zstandard")
JOBS = ("compact", "retain", "stream", "mirror", "to-delta", "from-delta", "to-iceberg")
"""Jobs parse their own arguments, including `--help`."""
HELP = [f"{command} --help" for command in commands() if command not in JOBS]
COLUMNS = "--print-key --print-timestamp --print-headers --print-offset --print-partition"
INPUTS = {
    "produce orders ROOT": "hello\n",
    "produce orders --partition 1 --key-separator : --headers --null-marker N ROOT": "a:b,c:N\tk:v\n\tk:N\n",
    "produce orders --json ROOT": '{"key": null, "value": "v", "headers": [["h", "x"]], "timestamp": 1}\n',
}
ALLOWED: Sequence[tuple[tuple[str, ...], Sequence[str]]] = [
    ((), ("--version", "--help", "conf crontab", *HELP)),
    (NUMBERS, LISTS),
    (
        NUMBERS,
        (
            *("topics describe orders ROOT", "groups describe --all-groups ROOT"),
            "groups delete-offsets g --topic orders ROOT",
            *("groups reset g --to-earliest --topic orders --execute ROOT", "groups delete g ROOT"),
            "configs docs retention.ms",
            *("transactions list ROOT", "transactions describe job ROOT"),
            *("groups history h ROOT", "transactions history job ROOT", "jobs ROOT", "jobs --runs ROOT"),
        ),
    ),
    (
        # Commits contain copies of earlier commits, which are read by a history and written by other commands.
        (*NUMBERS, "zstandard"),
        (
            *("log-dirs ROOT", "transactions abort job ROOT"),
            *("topics create new ROOT", "topics alter new -p 3 ROOT", "clone new newer ROOT", "topics delete new ROOT"),
            "configs alter newer --add-config retention.ms=1000 ROOT",
            "delete-records --topic orders --partition 0 --offset 0 ROOT",
        ),
    ),
    ((*NUMBERS, "zstandard", RETAIN), ("retain ROOT",)),
    (("numpy", "asyncio"), ("serve LOCATION --listen 127.0.0.1:0", "serve --memory --listen 127.0.0.1:0")),
    (
        (*RECORDS, *MAINTENANCE),
        (
            *("metrics ROOT", "doctor --cost", "compact --dry-run ROOT", "export orders --to EXPORT ROOT"),
            *("dump-log EXPORT/orders-0/00000000000000000000.log", "backup --to BACKUP ROOT"),
            "restore BACKUP --to NEW",
        ),
    ),
    # The group lags in many partitions, whose records are read together.
    (RECORDS, ("groups reset late --to-earliest --topic many --execute ROOT", "groups describe late ROOT")),
    ((*RECORDS, *MAINTENANCE, "jinja2"), ("report --html PAGE ROOT",)),
    (
        RECORDS,
        (
            *("consume orders --max-messages 1 ROOT", "consume orders --json ROOT", f"consume orders {COLUMNS} ROOT"),
            *(
                "get orders --key a ROOT",
                "table orders ROOT",
                "offsets orders --time 5 ROOT",
                "verify ROOT",
                "repair ROOT",
                *INPUTS,
            ),
            *("import EXPORT --root OTHER", "perf consume --topic orders --messages 1 ROOT"),
            "repartition orders --to orders-3 --partitions 3 --move-groups ROOT",
        ),
    ),
    # The futures of records can be awaited.
    ((*RECORDS, "asyncio"), ("perf produce --topic orders --num-records 5 --record-size 9 ROOT",)),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = {"key": [b"a", None], "value": [b"1", None], "headers": pa.array([[("h", b"v"), ("n", None)], None], kind)}
    log = sparklog.open(tmp_path / "root", create=True)
    log.create_topic("orders", partitions=2).append(pa.table(rows))
    transaction = sparklog.transactional(log, "job", timeout_ms=3_600_000).begin()
    transaction.append("orders", pa.table({"value": [b"2"]}))
    transaction._prepare_topics()
    # The group has read all records. Otherwise, a record would be read to compute the age of the lag.
    Groups(log).group("h").join("one").leave()
    Groups(log).group("g").alter({"orders": dict(enumerate(log.topic("orders").log.state().log_end.tolist()))})
    log.create_topic("many", partitions=20).append(pa.table({"value": [b"v"] * 20, "partition": range(20)}))
    return tmp_path / "root"


def test_commands_import_only_required_modules(root: Path) -> None:
    places = {"ROOT": f"--root {root}", "LOCATION": str(root)}
    places |= {word: str(root.parent / word.lower()) for word in ("EXPORT", "BACKUP", "NEW", "OTHER", "PAGE")}

    def words(line: str) -> list[str]:
        for name, place in places.items():
            line = line.replace(name, place)
        return line.split()

    groups = [[(words(line), INPUTS.get(line, "")) for line in lines] for _, lines in ALLOWED]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=REPOSITORY,
        input=json.dumps([(*HEAVY, *SMALL), groups]),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    loaded = [json.loads(line[6:]) for line in done.stderr.splitlines() if line.startswith("LOADED")]
    for (allowed, lines), names in zip(ALLOWED, loaded, strict=True):
        small = loaded_by_numpy() if lines is LISTS else SMALL
        assert set(names).difference(small) == set(allowed), lines


def loaded_by_numpy() -> set[str]:
    """Return the modules that numpy loads, for example hashlib in numpy 1."""
    program = f"import numpy, sys; print(*{{*{SMALL}}}.intersection(sys.modules))"
    return {*subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()}


def test_every_command_is_covered() -> None:
    """Except jobs that need a cluster, or that run until they are stopped."""
    lines = [line for _, group in ALLOWED for line in group if not line.endswith("--help")]
    left_out = {command for command in commands() if not any(line.startswith(f"{command} ") for line in lines)}
    assert left_out == {"stream", "mirror", "to-delta", "from-delta", "to-iceberg"}
