"""Checks of a host and of a root, with a fix for each problem."""

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
TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check. If the status is `warn` or `fail`, `fix` is the command or setting that solves the
    problem.
    """

    check: str
    status: str
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """The output of a program on both streams, and its exit code, which is None if the program could not be started."""

    code: int | None
    text: str


def _run(command: Sequence[str]) -> ProgramOutput:
    """Run a program in the directory `/`, so that Python does not import modules from the current directory."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_SECONDS, check=False, cwd="/"
        )
    except (OSError, subprocess.SubprocessError) as error:
        return ProgramOutput(None, str(error))
    return ProgramOutput(done.returncode, done.stdout + done.stderr)


def _free(path: str) -> tuple[int, int]:
    usage = shutil.disk_usage(path)
    return usage.free, usage.total


@dataclass(frozen=True, slots=True)
class Machine:
    """Functions of the operating system. `free` returns the free and the total bytes of the file system of a path."""

    environ: Mapping[str, str]
    which: Callable[[str], str | None] = shutil.which
    run: Callable[[Sequence[str]], ProgramOutput] = _run
    free: Callable[[str], tuple[int, int]] = _free


HERE = Machine(os.environ)


MIN_PYTHON = (3, 10)
_OLDER_PYTHON = re.compile(r"""python_version\s*<\s*["']([\d.]+)["']""")
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*([^;]*)(?:;.*extra\s*==\s*['\"](\w+)['\"])?")
_BOUND = re.compile(r"(>=|<=|==|!=|<|>)\s*([\d.]+)")


def check_python() -> Check:
    version = f"Python {_dotted(sys.version_info[:3])} ({sys.executable})"
    if sys.version_info[:2] >= MIN_PYTHON:
        return Check("python", OK, version)
    return Check("python", FAIL, f"{version}, requires {_dotted(MIN_PYTHON)} or newer", "make PYTHON=<a newer python3>")


class Requirement(NamedTuple):
    """A required package and its version range. `extra` is empty if the package is always required."""

    package: str
    versions: str
    extra: str


def _is_for_an_older_python(text: str) -> bool:
    below = _OLDER_PYTHON.search(text)
    return below is not None and sys.version_info[:2] >= _numbers(below[1])[:2]


def read_requirements(texts: Sequence[str]) -> list[Requirement]:
    """Return the requirements in the metadata of a distribution, except those for older Python versions."""
    matches = filter(None, map(_REQUIREMENT.match, filterfalse(_is_for_an_older_python, texts)))
    return [Requirement(match[1], match[2].strip().strip("()"), match[3] or "") for match in matches]


def out_of_range(version: str, bounds: str) -> bool:
    """Return True if a version is not in a range such as `>=1.26,<3`. Suffixes (rc1, .post1) are ignored."""
    have = _numbers(version)
    for sign, text in _BOUND.findall(bounds):
        bound = _numbers(text)
        size = max(len(have), len(bound))
        left, right = (numbers + (0,) * (size - len(numbers)) for numbers in (have, bound))
        is_met = {">=": left >= right, "<=": left <= right, "==": left == right, "!=": left != right}
        if not is_met.get(sign, left < right if sign == "<" else left > right):
            return True
    return False


def check_packages() -> list[Check]:
    """Check that the versions of required packages and of pyspark are in the declared ranges."""
    try:
        requirements = metadata.requires("sparklog") or []
    except metadata.PackageNotFoundError:
        message = "sparklog runs from a directory and is not installed, so the required versions are unknown"
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
        message = "pyspark is not installed, so queries and distributed jobs do not work"
        return Check("pyspark", WARN, message, fix)
    if out_of_range(version, bounds):
        return Check("pyspark", FAIL, f"{name} {version}, expected {bounds}", fix)
    note = ", with fewer features than 4.2 (docs/reference/spark-versions.md)" if out_of_range(version, ">=4.2") else ""
    return Check("pyspark", OK, f"{name} {version}{note}")


def check_kernels() -> Check:
    """Check that compiled kernels are cached, so that processes do not have to compile them."""
    fix = f"{sys.executable} -m sparklog.format.kernels.warm"
    try:
        from sparklog.format.kernels.machine_code import CACHE_DIRECTORY, SUFFIX
    except ImportError as error:
        return Check("kernels", FAIL, f"failed to load the kernels: {error}", "see the packages check")
    if CACHE_DIRECTORY is None:
        message = "no writable directory for compiled kernels, so each process compiles them again, which takes 30 s"
        return Check("kernels", WARN, message, "export TMPDIR=<a writable directory>")
    compiled = sum(name.endswith(SUFFIX) for _, _, names in os.walk(CACHE_DIRECTORY) for name in names)
    if not compiled:
        return Check("kernels", WARN, f"there are no compiled kernels in {CACHE_DIRECTORY}", fix)
    return Check("kernels", OK, f"{compiled} compiled kernels in {CACHE_DIRECTORY}")


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


MIN_JAVA = 17
DEFAULTS = "spark-defaults.conf"
SESSION = "the session"
ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_WHY = {
    ARROW_BYTES: "with other values, Spark recomputes the size of all columns after each row of a Python sink",
    "spark.python.unix.domain.socket.enabled": "over TCP, each Python task takes about 40 ms longer; set it before the "
    "session starts",
}


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Spark settings and their source.

    Attributes:
        source: the file or session with the settings, or None if there is none.
        problem: the error if the file cannot be read.
    """

    source: str | None
    values: Mapping[str, str]
    problem: str = ""


def has_spark(machine: Machine) -> bool:
    """Return True if pyspark is installed or SPARK_HOME is set."""
    return bool(machine.environ.get("SPARK_HOME")) or util.find_spec("pyspark") is not None


def check_java(machine: Machine, *, spark: bool) -> Check:
    """Check the Java installation that Spark uses, which is in JAVA_HOME or on the PATH.

    If `spark` is False, a problem is reported as a warning.
    """
    home = machine.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    path = machine.which(java)
    output = machine.run([path, "-version"]) if path is not None else None
    version = None if output is None else re.search(r'version "((?:1\.)?(\d+)[^"]*)"', output.text)
    if output is None or output.code is None:
        message = f"{java} was not found; Spark requires Java {MIN_JAVA} or newer"
    elif version is None:
        message = f"{path} does not print its version: {' '.join(output.text.split())[:80]}"
    elif int(version[2]) < MIN_JAVA:
        message = f"Java {version[1]} ({path}), Spark requires {MIN_JAVA} or newer"
    else:
        return Check("java", OK, f"Java {version[1]} ({path})")
    fix = "install Java (for example openjdk-17-jre-headless) and add it to the PATH or set JAVA_HOME"
    return Check("java", FAIL if spark else WARN, message, fix)


def spark_settings(machine: Machine, conf_file: str | None = None) -> SparkSettings:
    """Return the settings in `conf_file` or, by default, in the file that Spark reads.

    Raises `BadRequest` if `conf_file` cannot be read.
    """
    for path in [conf_file] if conf_file is not None else _default_files(machine):
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            if conf_file is not None:
                raise BadRequest(f"failed to read {path!r}: {error.strerror}; check --conf-file") from None
            continue
        try:
            return SparkSettings(path, {entry.name: entry.value for entry in parse_properties(text, path)})
        except BadRequest as error:
            return SparkSettings(path, {}, str(error))
    return SparkSettings(None, {})


def _default_files(machine: Machine) -> list[str]:
    """Return the file that Spark reads, in SPARK_CONF_DIR if this is set, otherwise in SPARK_HOME or pyspark."""
    folder = machine.environ.get("SPARK_CONF_DIR")
    if not folder and machine.environ.get("SPARK_HOME"):
        folder = os.path.join(machine.environ["SPARK_HOME"], "conf")
    if not folder:
        module = util.find_spec("pyspark")
        folder = os.path.join(os.path.dirname(module.origin), "conf") if module and module.origin else None
    return [os.path.join(folder, DEFAULTS)] if folder else []


def check_settings(machine: Machine, settings: SparkSettings) -> list[Check]:
    """Check the recommended Spark settings. The fix of each check is a command that changes the setting."""
    if settings.problem:
        return [Check("spark settings", WARN, settings.problem, f"edit {settings.source}")]
    default_file = next(iter(_default_files(machine)), "$SPARK_HOME/conf/spark-defaults.conf")
    file = default_file if settings.source in (None, SESSION) else str(settings.source)
    folder = os.path.dirname(file)
    mkdir = "" if os.path.isdir(folder) or folder.startswith("$") else f"mkdir -p {folder} && "
    findings = []
    for name, recommended in SETTINGS.items():
        value = settings.values.get(name)
        # Spark returns sizes in a form such as 67108864b.
        if value is not None and value.strip().lower().removesuffix("b") == recommended:
            findings.append(Check("spark settings", OK, f"{name} is {recommended} ({settings.source})"))
            continue
        current = "is not set" if value is None else f"is {value}"
        source = f" in {settings.source}" if settings.source else ", because there is no spark-defaults.conf"
        fix = f"{mkdir}echo '{name} {recommended}' >> {file}"
        findings.append(Check("spark settings", WARN, f"{name} {current}{source}: {_WHY[name]}", fix))
    return findings


class Worker(NamedTuple):
    """The Python of a Spark worker, and the version of sparklog that it imports."""

    python: str
    executable: str
    sparklog: str


def _in_a_worker(_: int) -> Worker:
    """Return a description of the worker that runs this function."""
    return Worker(_dotted(sys.version_info[:3]), sys.executable, __version__)


def _start_session() -> SparkSession:
    """Start a local session with the settings of Spark. As with `configure`, its workers run this Python."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]")
    builder.config(map=choose_pythons(builder._options, os.environ, workers_python()))
    return quiet_session(builder, "sparklog doctor")


def check_session() -> tuple[SparkSettings, list[Check]]:
    """Start a local session or use the active session. Return its settings and a check of one of its workers."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        fix = install_command("spark", sys.executable)
        return SparkSettings(None, {}), [Check("spark session", FAIL, f"pyspark cannot be imported: {error}", fix)]
    running = SparkSession.getActiveSession()
    try:
        session = running or _start_session()
        context = session.sparkContext
        values = dict(context.getConf().getAll())
        # The default must be None, because Spark validates any other default.
        if (arrow_bytes := session.conf.get(ARROW_BYTES, None)) is None:
            values.pop(ARROW_BYTES, None)
        else:
            values[ARROW_BYTES] = arrow_bytes
        settings = SparkSettings(SESSION, values)
        worker: Worker = context.parallelize([0], 1).map(_in_a_worker).collect()[0]
        python = f"workers run Python {worker.python} ({worker.executable}) with sparklog {worker.sparklog}"
        finding = Check("spark session", OK, f"Spark {session.version}; {python}")
    except Exception as error:  # noqa: BLE001 - this check reports any error that keeps Spark from starting
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        fix = f"export PYSPARK_PYTHON={workers_python()}, and see the java check"
        return SparkSettings(None, {}), [
            Check("spark session", FAIL, f"failed to run a session with one task: {first}", fix)
        ]
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
    """Check the kind of file system and the free space of a local root."""
    mount = mount_of(path)
    kind = mount.rpartition("(")[2].rstrip(")") if mount.endswith(")") else ""
    system = Check("file system", OK, mount)
    if _NETWORK.fullmatch(kind):
        message = f"{mount} is a network file system, on which each commit takes several round trips"
        fix = "put the root on a local disk, or shorten the caches of the clients"
        system = Check("file system", WARN, message, fix)
    elif kind in _MEMORY:
        system = Check("file system", WARN, f"{mount} is in memory, so all data is lost at a restart", "use a disk")
    free, total = machine.free(path)
    message = f"{size_text(free)} of {size_text(total)} are free on {mount}"
    fix = "decrease retention.ms and run `sparklog retain`, or enlarge the disk"
    space = Check("space", OK, message)
    if free < FULL_BYTES:
        space = Check("space", FAIL, f"{message}; writers and jobs will fail", fix)
    elif free < NEARLY_FULL_BYTES or free < total * NEARLY_FULL_SHARE:
        space = Check("space", WARN, message, fix)
    return [system, space]


MAX_LATE_CHECKPOINTS = 8
"""A topic gets a warning if at least this number of checkpoints is missing."""
MAX_LISTED = 3
"""Maximum number of problems of one kind that are listed."""


def check_root(root: Root) -> list[Check]:
    """Check all topics. Return one check for each kind of problem, and one for each topic that cannot be opened."""
    problems: list[Check] = []
    findings: list[Check] = []
    count = 0
    for name in topic_names(root.store):
        try:
            topic = topic_of(root, name)
            if not topic.log.refresh().topic_state.exists:
                continue
            count += 1
            problems += [*_maintenance(root, topic), *_checkpoint(root, topic), *_transactions(root, topic)]
        except SparklogError as error:
            findings.append(Check("topics", FAIL, f"{name}: {error}", f"sparklog verify --root {_quoted(root)}"))
    if not findings:
        findings.append(Check("topics", OK, f"{count} in {root.location}, and all of them can be opened"))
    for kind in dict.fromkeys(problem.check for problem in problems):
        of_kind = [problem for problem in problems if problem.check == kind]
        more = f"; and {len(of_kind) - MAX_LISTED} more" if len(of_kind) > MAX_LISTED else ""
        fixes = list(dict.fromkeys(problem.fix for problem in of_kind))[:MAX_LISTED]
        message = "; ".join(problem.found for problem in of_kind[:MAX_LISTED]) + more
        findings.append(Check(kind, WARN, message, "; ".join(fixes)))
    return findings


def _maintenance(root: Root, topic: Topic) -> Iterator[Check]:
    rows, limits = topic.log.snapshot(refresh=False).slices.all(), root.store.limits
    unsealed = ~rows.sealed()
    slices = int(unsealed.sum())
    compact = f"sparklog compact --root {_quoted(root)}, every hour (see `sparklog conf crontab`)"
    was_never_compacted = unsealed.all() and not (rows.flags & MERGE_TIER_MASK).any()
    if slices > limits.many_unsealed:
        message = f"topic {topic.name} has {slices:,} unsealed slices, which slows down reads"
        yield Check("maintenance", WARN, message, compact)
    elif slices >= limits.never_compacted_slices and was_never_compacted:
        message = f"topic {topic.name} has {slices:,} slices that have never been merged or sealed"
        yield Check("maintenance", WARN, message, compact)


def _checkpoint(root: Root, topic: Topic) -> Iterator[Check]:
    state = topic.log.current()
    behind = state.topic_state.version - state.checkpoint_version
    every = root.store.limits.checkpoint_commits
    if behind >= MAX_LATE_CHECKPOINTS * every:
        expected = f"expected a checkpoint every {every} commits"
        message = f"topic {topic.name} has {behind:,} commits since its latest checkpoint, {expected}"
        fix = f"check permissions and free space for writers in {_quoted(root)}/{checkpoint_prefix(topic.name)}"
        yield Check("checkpoints", WARN, message, fix)


def _transactions(root: Root, topic: Topic) -> Iterator[Check]:
    state = topic.log.state(refresh=False)
    abort = "sparklog transactions abort"
    for id_ in dict.fromkeys(prepare.txn.id for prepare in state.open):
        prepares = [prepare for prepare in state.open if prepare.txn.id == id_]
        if root.engine.decisions.overdue(topic.name, prepares, reading_clock_ms(root.store, root.env)):
            message = f"transaction {id_} has timed out and holds back readers of topic {topic.name}"
            fix = f"{abort} {shlex.quote(id_)} --root {_quoted(root)}, or run compact or retain"
            yield Check("transactions", WARN, message, fix)
    for owner in sorted(set(map(owner_of, state.kafka_open))):
        message = f"transaction {owner}, which is open in Kafka, holds back readers of imported topic {topic.name}"
        yield Check("transactions", WARN, message, f"{abort} {shlex.quote(owner)} --root {_quoted(root)}")


def _quoted(root: Root) -> str:
    return shlex.quote(root.location)
