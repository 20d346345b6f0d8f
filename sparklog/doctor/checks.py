"""Checks of a host and of a root, each with the fix for its problem."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from itertools import filterfalse
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sparklog.common.lazy import install_command
from sparklog.common.units import size_text
from sparklog.datasource.session import SETTINGS, choose_pythons, workers_python
from sparklog.errors import BadRequest, SparklogError
from sparklog.log.journal.clocks import reading_clock_ms
from sparklog.log.journal.names import checkpoint_prefix, topic_names
from sparklog.log.state.slices import MERGE_TIER_MASK
from sparklog.log.topic.root import Root, topic_of
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.properties import parse_properties
from sparklog.maintenance.spark_runner import quiet_session
from sparklog.storage.system_errors import mount_of
from sparklog.transactions.listing import owner_of
from sparklog.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OK, WARN, FAIL = "ok", "warn", "fail"
ANSWER_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check; `fix`: for `warn` and `fail` the exact command or setting that puts it right."""

    check: str
    status: str
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """Exit code of a program, None where it could not be started, and the text on both of its streams."""

    code: int | None
    text: str


def _run(command: Sequence[str]) -> ProgramOutput:
    """Run a program away from the current folder: Python would take modules from it that no worker has."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS, check=False, cwd="/"
        )
    except (OSError, subprocess.SubprocessError) as error:
        return ProgramOutput(None, str(error))
    return ProgramOutput(done.returncode, done.stdout + done.stderr)


def _free(path: str) -> tuple[int, int]:
    usage = shutil.disk_usage(path)
    return usage.free, usage.total


@dataclass(frozen=True, slots=True)
class Machine:
    """Calls to the operating system; `free`: free and total bytes of the file system of a path."""

    environ: Mapping[str, str]
    which: Callable[[str], str | None] = shutil.which
    run: Callable[[Sequence[str]], ProgramOutput] = _run
    free: Callable[[str], tuple[int, int]] = _free


HERE = Machine(os.environ)


LEAST = (3, 10)
_OLDER_PYTHON = re.compile(r"""python_version\s*<\s*["']([\d.]+)["']""")
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*([^;]*)(?:;.*extra\s*==\s*['\"](\w+)['\"])?")
_BOUND = re.compile(r"(>=|<=|==|!=|<|>)\s*([\d.]+)")


def check_python() -> Check:
    version = f"Python {_dotted(sys.version_info[:3])} ({sys.executable})"
    if sys.version_info[:2] >= LEAST:
        return Check("python", OK, version)
    return Check("python", FAIL, f"{version}, expected {_dotted(LEAST)} or newer", "make PYTHON=<a newer python3>")


class Requirement(NamedTuple):
    """A package that a distribution requires, in a range of versions, for an extra (empty: always)."""

    package: str
    versions: str
    extra: str


def _is_for_an_older_python(text: str) -> bool:
    below = _OLDER_PYTHON.search(text)
    return below is not None and sys.version_info[:2] >= _numbers(below[1])[:2]


def read_requirements(texts: Sequence[str]) -> list[Requirement]:
    """Return the requirements of a distribution's metadata, without those that only an older Python has."""
    matches = filter(None, map(_REQUIREMENT.match, filterfalse(_is_for_an_older_python, texts)))
    return [Requirement(match[1], match[2].strip().strip("()"), match[3] or "") for match in matches]


def out_of_range(version: str, bounds: str) -> bool:
    """True if a version is outside of `>=1.26,<3`; parts after the numbers (rc1, .post1) do not count."""
    have = _numbers(version)
    for sign, text in _BOUND.findall(bounds):
        bound = _numbers(text)
        size = max(len(have), len(bound))
        left, right = (part + (0,) * (size - len(part)) for part in (have, bound))
        held = {">=": left >= right, "<=": left <= right, "==": left == right, "!=": left != right}
        if not held.get(sign, left < right if sign == "<" else left > right):
            return True
    return False


def check_packages() -> list[Check]:
    """Check the packages that sparklog requires, in the ranges it declares, and pyspark of its extras."""
    try:
        requirements = metadata.requires("sparklog") or []
    except metadata.PackageNotFoundError:
        message = "sparklog is not installed, it runs from a folder: the versions of what it needs are not known"
        return [Check("packages", WARN, message, f"{sys.executable} -m pip install -e '.[spark]'")]
    wrong, right, spark = list[str](), list[str](), list[Check]()
    outdated: list[tuple[str, str]] = []
    for name, bounds, extra in read_requirements(requirements):
        if extra not in ("", "spark"):
            continue
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = None
        if extra == "spark":
            spark = [_pyspark(name, version, bounds)]
        elif version is None or out_of_range(version, bounds):
            wrong.append(f"{name} {version or 'missing'} (expected {bounds})")
            outdated.append((name, bounds))
        else:
            right.append(f"{name} {version}")
    if wrong:
        needed = " ".join(f'"{name}{bounds}"' for name, bounds in outdated)
        fix = f"{sys.executable} -m pip install {needed}"
        return [Check("packages", FAIL, ", ".join(wrong), fix), *spark]
    return [Check("packages", OK, ", ".join(right)), *spark]


def _pyspark(name: str, version: str | None, bounds: str) -> Check:
    fix = install_command("spark", sys.executable)
    if version is None:
        message = "no pyspark here: the command line and the Python API work, queries and distributed jobs do not"
        return Check("pyspark", WARN, message, fix)
    if out_of_range(version, bounds):
        return Check("pyspark", FAIL, f"{name} {version}, expected {bounds}", fix)
    less = ", without some of what 4.2 has (docs/reference/spark-versions.md)" if out_of_range(version, ">=4.2") else ""
    return Check("pyspark", OK, f"{name} {version}{less}")


def check_kernels() -> Check:
    """Check that compiled code is kept, so that no process waits for the compiler."""
    fix = f"{sys.executable} -m sparklog.format.kernels.warm"
    try:
        from sparklog.format.kernels.native_kernels import CACHE_DIRECTORY
    except ImportError as error:
        return Check("kernels", FAIL, f"they cannot be loaded: {error}", "see packages")
    if CACHE_DIRECTORY is None:
        message = "no folder to keep compiled kernels in: each process compiles them again, half a minute"
        return Check("kernels", WARN, message, "export TMPDIR=<a folder that can be written to>")
    compiled = sum(name.endswith(".nbc") for _, _, names in os.walk(CACHE_DIRECTORY) for name in names)
    if not compiled:
        return Check("kernels", WARN, f"not compiled yet, kept in {CACHE_DIRECTORY}", fix)
    return Check("kernels", OK, f"{compiled} compiled in {CACHE_DIRECTORY}")


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


LEAST_JAVA = 17
DEFAULTS = "spark-defaults.conf"
SESSION = "the session"
ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_WHY = {
    ARROW_BYTES: "with any other value Spark computes the size of all columns again after each row that a Python sink "
    "takes in",
    "spark.python.unix.domain.socket.enabled": "over TCP each Python task waits some 40 ms for nothing; static: before "
    "the session starts",
}


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Settings, and the file or session they come from, None without any; `problem`: why it is unread."""

    source: str | None
    values: Mapping[str, str]
    problem: str = ""


def has_spark(machine: Machine) -> bool:
    """True if there is a Spark: pyspark, or a SPARK_HOME."""
    return bool(machine.environ.get("SPARK_HOME")) or util.find_spec("pyspark") is not None


def check_java(machine: Machine, *, spark: bool) -> Check:
    """Java where Spark looks for it: JAVA_HOME, then the PATH. Without Spark its lack is a warning."""
    home = machine.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    path = machine.which(java)
    answer = machine.run([path, "-version"]) if path is not None else None
    version = None if answer is None else re.search(r'version "((?:1\.)?(\d+)[^"]*)"', answer.text)
    if answer is None or answer.code is None:
        message = f"none (tried {java}); Spark needs Java {LEAST_JAVA} or newer"
    elif version is None:
        message = f"{path} does not say its version: {' '.join(answer.text.split())[:80]}"
    elif int(version[2]) < LEAST_JAVA:
        message = f"Java {version[1]} ({path}), Spark needs {LEAST_JAVA} or newer"
    else:
        return Check("java", OK, f"Java {version[1]} ({path})")
    fix = "install one (say openjdk-17-jre-headless) and put it on the PATH or into JAVA_HOME"
    return Check("java", FAIL if spark else WARN, message, fix)


def spark_settings(machine: Machine, conf_file: str | None = None) -> SparkSettings:
    """The settings of the file that Spark reads: the one given, else of SPARK_CONF_DIR, of SPARK_HOME, of pyspark.

    `BadRequest` if the file that was given cannot be read.
    """
    for path in [conf_file] if conf_file is not None else _places(machine):
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            if conf_file is not None:
                raise BadRequest(f"{path!r} cannot be read: {error.strerror}; check --conf-file") from None
            continue
        try:
            return SparkSettings(path, {entry.name: entry.value for entry in parse_properties(text, path)})
        except BadRequest as error:
            return SparkSettings(path, {}, str(error))
    return SparkSettings(None, {})


def _places(machine: Machine) -> list[str]:
    """Spark takes the first of these folders that is named, and no other."""
    folder = machine.environ.get("SPARK_CONF_DIR")
    if not folder and machine.environ.get("SPARK_HOME"):
        folder = os.path.join(machine.environ["SPARK_HOME"], "conf")
    if not folder:
        module = util.find_spec("pyspark")
        folder = os.path.join(os.path.dirname(module.origin), "conf") if module and module.origin else None
    return [os.path.join(folder, DEFAULTS)] if folder else []


def check_settings(machine: Machine, settings: SparkSettings) -> list[Check]:
    """The settings worth changing, each with the line that changes it."""
    if settings.problem:
        return [Check("spark settings", WARN, settings.problem, f"edit {settings.source}")]
    file = next(iter(_places(machine)), "$SPARK_HOME/conf/spark-defaults.conf")
    where = file if settings.source in (None, SESSION) else str(settings.source)
    folder = os.path.dirname(where)
    make = "" if os.path.isdir(folder) or folder.startswith("$") else f"mkdir -p {folder} && "
    findings = []
    for name, wanted in SETTINGS.items():
        value = settings.values.get(name)
        # Spark itself shows sizes as 67108864b.
        if value is not None and value.strip().lower().removesuffix("b") == wanted:
            findings.append(Check("spark settings", OK, f"{name} is {wanted} ({settings.source})"))
            continue
        here = "is not set" if value is None else f"is {value}"
        source = f" in {settings.source}" if settings.source else ", there is no spark-defaults.conf"
        fix = f"{make}echo '{name} {wanted}' >> {where}"
        findings.append(Check("spark settings", WARN, f"{name} {here}{source}: {_WHY[name]}", fix))
    return findings


class Worker(NamedTuple):
    """The Python of a worker of Spark, and the sparklog that it imports."""

    python: str
    executable: str
    sparklog: str


def _in_a_worker(_: int) -> Worker:
    """Describe a worker, which imported sparklog to find this function."""
    return Worker(_dotted(sys.version_info[:3]), sys.executable, __version__)


def _start_session() -> SparkSession:
    """Start a local session, whose workers are of this Python as those of `configure` are, with Spark's settings."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]")
    builder.config(map=choose_pythons(builder._options, os.environ, workers_python()))
    return quiet_session(builder, "sparklog doctor")


def ask_spark() -> tuple[SparkSettings, list[Check]]:
    """Start a local session, or use the one that runs, and ask it: its settings, and what a worker of it is."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        fix = install_command("spark", sys.executable)
        return SparkSettings(None, {}), [Check("spark session", FAIL, f"no pyspark: {error}", fix)]
    running = SparkSession.getActiveSession()
    try:
        session = running or _start_session()
        context = session.sparkContext
        values = dict(context.getConf().getAll())
        # Spark checks a default that is given, as if it were to be set.
        if (arrow_bytes := session.conf.get(ARROW_BYTES, None)) is None:
            values.pop(ARROW_BYTES, None)
        else:
            values[ARROW_BYTES] = arrow_bytes
        settings = SparkSettings(SESSION, values)
        worker: Worker = context.parallelize([0], 1).map(_in_a_worker).collect()[0]
        python = f"a worker is Python {worker.python} ({worker.executable}) with sparklog {worker.sparklog}"
        message = f"Spark {session.version}; {python}"
        finding = Check("spark session", OK, message)
    except Exception as error:  # noqa: BLE001 - whatever keeps Spark from starting is what is looked for
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        fix = f"export PYSPARK_PYTHON={workers_python()}, and see java"
        return SparkSettings(None, {}), [Check("spark session", FAIL, f"a session with one task fails: {first}", fix)]
    finally:
        started = SparkSession.getActiveSession()
        if running is None and started is not None:
            started.stop()
    return settings, [finding]


FULL_BYTES = 64 << 20
NEARLY_FULL_BYTES = 1 << 30
NEARLY_FULL_SHARE = 0.05
_NETWORK = re.compile(r"nfs\d?|cifs|smb\w*|9p|afs|ceph|glusterfs|lustre|fuse\..+")
_MEMORY = ("tmpfs", "ramfs")


def check_disk(machine: Machine, path: str) -> list[Check]:
    """Kind of file system and free space of a local root."""
    mount = mount_of(path)
    kind = mount.rpartition("(")[2].rstrip(")") if mount.endswith(")") else ""
    system = Check("file system", OK, mount)
    if _NETWORK.fullmatch(kind):
        message = f"{mount} is a network file system: the probe sees no trouble, but a commit costs several trips"
        fix = "put the root on a local disk, or keep its clients' caches short"
        system = Check("file system", WARN, message, fix)
    elif kind in _MEMORY:
        system = Check("file system", WARN, f"{mount} is memory: nothing there outlives a restart", "use a disk")
    free, total = machine.free(path)
    message = f"{size_text(free)} of {size_text(total)} are free on {mount}"
    fix = "free space: shorten retention.ms, run `sparklog retain`, or enlarge the disk"
    space = Check("space", OK, message)
    if free < FULL_BYTES:
        space = Check("space", FAIL, f"{message}: neither writers nor jobs get on", fix)
    elif free < NEARLY_FULL_BYTES or free < total * NEARLY_FULL_SHARE:
        space = Check("space", WARN, message, fix)
    return [system, space]


LATE_CHECKPOINTS = 8
"""Checkpoints of a topic that are due and not there."""
NAMED = 3


def check_root(root: Root) -> list[Check]:
    """All topics, one finding per kind of trouble; a topic that cannot be opened is one by itself."""
    complaints: list[Check] = []
    findings: list[Check] = []
    count = 0
    for name in topic_names(root.store):
        try:
            topic = topic_of(root, name)
            if not topic.log.refresh().topic_state.exists:
                continue
            count += 1
            complaints += [*_maintenance(root, topic), *_checkpoint(root, topic), *_transactions(root, topic)]
        except SparklogError as error:
            findings.append(Check("topics", FAIL, f"{name}: {error}", f"sparklog verify --root {_shown(root)}"))
    if not findings:
        findings.append(Check("topics", OK, f"{count} in {root.location}, all of them open"))
    for kind in dict.fromkeys(trouble.check for trouble in complaints):
        of_kind = [trouble for trouble in complaints if trouble.check == kind]
        more = f"; and {len(of_kind) - NAMED} more" if len(of_kind) > NAMED else ""
        fixes = list(dict.fromkeys(trouble.fix for trouble in of_kind))[:NAMED]
        message = "; ".join(trouble.found for trouble in of_kind[:NAMED]) + more
        findings.append(Check(kind, WARN, message, "; ".join(fixes)))
    return findings


def _maintenance(root: Root, topic: Topic) -> Iterator[Check]:
    rows, limits = topic.log.snapshot(refresh=False).slices.all(), root.store.limits
    unsealed = ~rows.sealed()
    many = int(unsealed.sum())
    compact = f"sparklog compact --root {_shown(root)}, every hour (see `sparklog conf crontab`)"
    untouched = unsealed.all() and not (rows.flags & MERGE_TIER_MASK).any()
    if many > limits.many_unsealed:
        yield Check("maintenance", WARN, f"topic {topic.name} holds {many:,} unsealed slices, writers warn", compact)
    elif many >= limits.never_compacted_slices and untouched:
        message = f"topic {topic.name} holds {many:,} slices, none ever merged or sealed"
        yield Check("maintenance", WARN, message, compact)


def _checkpoint(root: Root, topic: Topic) -> Iterator[Check]:
    state = topic.log.current()
    behind = state.topic_state.version - state.checkpoint_version
    every = root.store.limits.checkpoint_commits
    if behind >= LATE_CHECKPOINTS * every:
        message = f"topic {topic.name} has {behind:,} commits since its newest checkpoint, writers make one every "
        fix = f"check why writers cannot: permissions and space below {_shown(root)}/{checkpoint_prefix(topic.name)}"
        yield Check("checkpoints", WARN, f"{message}{every}", fix)


def _transactions(root: Root, topic: Topic) -> Iterator[Check]:
    state = topic.log.state(refresh=False)
    abort = "sparklog transactions abort"
    for transaction in dict.fromkeys(item.txn.id for item in state.open):
        prepares = [item for item in state.open if item.txn.id == transaction]
        if root.engine.decisions.overdue(topic.name, prepares, reading_clock_ms(root.store, root.env)):
            message = f"transaction {transaction} holds back topic {topic.name} beyond its timeout"
            fix = f"{abort} {shlex.quote(transaction)} --root {_shown(root)}, or run either job"
            yield Check("transactions", WARN, message, fix)
    for owner in sorted(set(map(owner_of, state.kafka_open))):
        message = f"transaction {owner}, which Kafka left open, holds back imported topic {topic.name}"
        yield Check("transactions", WARN, message, f"{abort} {shlex.quote(owner)} --root {_shown(root)}")


def _shown(root: Root) -> str:
    return shlex.quote(root.location)
