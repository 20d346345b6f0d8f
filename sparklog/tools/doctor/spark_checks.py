"""Java, and the Spark settings worth changing: as its configuration file says, or as a running session says."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from sparklog.errors import BadRequest
from sparklog.maintenance.properties import parse_properties
from sparklog.tools.doctor.finding import FAIL, OK, WARN, Finding, Machine


LEAST_JAVA = 17
DEFAULTS = "spark-defaults.conf"
SESSION = "the session"


@dataclass(frozen=True, slots=True)
class _Setting:
    name: str
    value: str
    why: str


WORTH_CHANGING = (
    _Setting(
        "spark.sql.execution.arrow.maxBytesPerBatch",
        "2147483647",
        "with any other value Spark computes the size of all columns anew after each row that a Python sink takes in",
    ),
    _Setting(
        "spark.python.unix.domain.socket.enabled",
        "true",
        "over TCP each Python task waits some 40 ms for nothing; static: before the session starts",
    ),
)


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """What was found: `source` is the file or session they come from, None without any; `problem`: why it is unread."""

    source: str | None
    values: Mapping[str, str]
    problem: str = ""


def has_spark(machine: Machine) -> bool:
    """Whether there is a Spark here: pyspark, or a SPARK_HOME."""
    return bool(machine.environ.get("SPARK_HOME")) or util.find_spec("pyspark") is not None


def check_java(machine: Machine, *, spark: bool) -> Finding:
    """Java where Spark looks for it: JAVA_HOME, then the PATH. Without Spark its lack is a warning."""
    bad = FAIL if spark else WARN
    fix = "install one (say openjdk-17-jre-headless) and put it on the PATH or into JAVA_HOME"
    home = machine.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    path = machine.which(java)
    answer = machine.run([path, "-version"]) if path is not None else None
    if answer is None or answer.code is None:
        return Finding("java", bad, f"none (tried {java}); Spark needs Java {LEAST_JAVA} or newer", fix)
    version = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', answer.text)
    if version is None:
        said = " ".join(answer.text.split())[:80]
        return Finding("java", bad, f"{path} does not say its version: {said}", fix)
    if int(version[2]) < LEAST_JAVA:
        return Finding("java", bad, f"Java {version[1]} ({path}), Spark needs {LEAST_JAVA} or newer", fix)
    return Finding("java", OK, f"Java {version[1]} ({path})")


def spark_settings(machine: Machine, conf_file: str | None = None) -> SparkSettings:
    """The settings of the file that Spark reads: the one given, else of SPARK_CONF_DIR, of SPARK_HOME, of pyspark.

    `BadRequest` if the file that was given cannot be read.
    """
    for path in [conf_file] if conf_file is not None else _places(machine):
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            if conf_file is not None:
                raise BadRequest(f"{path} cannot be read: {error.strerror}; check --conf-file") from None
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
        found = util.find_spec("pyspark")
        folder = os.path.join(os.path.dirname(found.origin), "conf") if found and found.origin else None
    return [os.path.join(folder, DEFAULTS)] if folder else []


def check_settings(machine: Machine, settings: SparkSettings) -> list[Finding]:
    """The settings worth changing, each with the line that changes it."""
    if settings.problem:
        return [Finding("spark settings", WARN, settings.problem, f"edit {settings.source}")]
    file = next(iter(_places(machine)), "$SPARK_HOME/conf/spark-defaults.conf")
    where = file if settings.source in (None, SESSION) else str(settings.source)
    folder = os.path.dirname(where)
    make = "" if os.path.isdir(folder) or folder.startswith("$") else f"mkdir -p {folder} && "
    found = []
    for wanted in WORTH_CHANGING:
        value = settings.values.get(wanted.name)
        # Spark itself shows sizes as 67108864b.
        if value is not None and value.strip().lower().removesuffix("b") == wanted.value:
            found.append(Finding("spark settings", OK, f"{wanted.name} is {wanted.value} ({settings.source})"))
            continue
        here = "is not set" if value is None else f"is {value}"
        source = f" in {settings.source}" if settings.source else ", there is no spark-defaults.conf"
        fix = f"{make}echo '{wanted.name} {wanted.value}' >> {where}"
        found.append(Finding("spark settings", WARN, f"{wanted.name} {here}{source}: {wanted.why}", fix))
    return found


def _in_a_worker(_: int) -> tuple[str, str, str]:
    """What a worker is: version, interpreter, sparklog's version (it was imported to find this function)."""
    version = str(getattr(sys.modules["sparklog"], "__version__", ""))
    return ".".join(map(str, sys.version_info[:3])), sys.executable, version


def ask_spark() -> tuple[SparkSettings, list[Finding]]:
    """Start a local session, or use the one that runs, and ask it: its settings, and what a worker of it is."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        fix = f"{sys.executable} -m pip install 'sparklog[spark]'"
        return SparkSettings(None, {}), [Finding("spark session", FAIL, f"no pyspark: {error}", fix)]
    running = SparkSession.getActiveSession()
    try:
        session = running or SparkSession.builder.master("local[1]").appName("sparklog doctor").getOrCreate()
        context = session.sparkContext
        values = dict(context.getConf().getAll())
        name = WORTH_CHANGING[0].name
        values[name] = str(session.conf.get(name))
        settings = SparkSettings(SESSION, values)
        version, executable, sparklog = context.parallelize([0], 1).map(_in_a_worker).collect()[0]
        said = f"Spark {session.version}; a worker is Python {version} ({executable}) with sparklog {sparklog}"
        finding = Finding("spark session", OK, said)
    except Exception as error:  # noqa: BLE001 - whatever keeps Spark from starting is what is looked for
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        fix = f"export PYSPARK_PYTHON={sys.executable}, and see java"
        return SparkSettings(None, {}), [Finding("spark session", FAIL, f"a session with one task fails: {first}", fix)]
    finally:
        started = SparkSession.getActiveSession()
        if running is None and started is not None:
            started.stop()
    return settings, [finding]
