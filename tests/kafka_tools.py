"""Kafka's own DumpLogSegments, as a judge of the segments that we write.

It needs Java and Kafka's jars. Spark brings Ivy along, which fetches the jars from Maven Central once per machine (half
a minute, 40 MB) into a cache folder of the user; `SPARKLOG_KAFKA_JARS` names a folder that has them already.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

KAFKA_VERSION = "4.1.0"
JARS_VARIABLE = "SPARKLOG_KAFKA_JARS"
COMPLETE = ".complete"
RESOLVE_SECONDS = 400
_missing: dict[Path, str] = {}
"""What could not be fetched: a network that answers nothing costs a run this long once."""
MARKER_BYTES = 34
"""Of an entry of a `.txnindex`."""

_IVY = f"""<ivy-module version="2.0">
  <info organisation="sparklog" module="kafka-tools"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}" conf="default->runtime(*),master(*)"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="default->runtime(*),master(*)"/>
    <exclude org="org.scala-lang" module="scala-reflect"/>
  </dependencies>
</ivy-module>
"""
# Maven Central alone: what other tools have left in a local repository may be half there.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true" root="https://repo1.maven.org/maven2/"/>
  </resolvers>
</ivysettings>
"""
_RECORD = re.compile(
    r"\| offset: (\d+) (?:CreateTime|LogAppendTime): (-?\d+) keySize: (-?\d+) valueSize: (-?\d+)"
    r" sequence: -?\d+ headerKeys: \[(.*?)\]( endTxnMarker: \w+ coordinatorEpoch: \d+)?"
)
_BATCH = re.compile(r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .* isvalid: (\w+)$")
_OLD_MESSAGE = re.compile(r"offset: \d+ position: \d+ .* magic: [01] .* isvalid: (\w+)$")


class Missing(Exception):  # noqa: N818
    """The tools cannot be run here: a reason to skip, with what to do about it."""


@dataclass(frozen=True, slots=True)
class DumpedRecord:
    """A record as DumpLogSegments prints it; sizes in bytes, -1: null. `control`: an end-of-transaction marker."""

    offset: int
    timestamp: int
    key_size: int
    value_size: int
    header_keys: str
    control: bool


@dataclass(frozen=True, slots=True)
class Dumped:
    """What one or more runs printed: lines of standard output per file, lines of standard error."""

    files: dict[str, list[str]]
    errors: list[str]

    def records(self, log: Path) -> list[DumpedRecord]:
        """Of a `.log` dumped with --deep-iteration."""
        found = [_RECORD.match(line) for line in self.files[str(log)] if line.startswith("|")]
        assert all(found), [line for line in self.files[str(log)] if line.startswith("|")][:3]
        return [
            DumpedRecord(int(hit[1]), int(hit[2]), int(hit[3]), int(hit[4]), hit[5], bool(hit[6]))
            for hit in found
            if hit is not None
        ]


@dataclass(frozen=True, slots=True)
class Checked:
    """What the tool has against segments and the indexes beside them, and what it printed of their records."""

    complaints: list[str]
    dumped: Dumped


class KafkaTools:
    """DumpLogSegments, in one JVM for all calls: to start it takes a second of CPU, a call hundredths. `stop` ends it.

    It is reached by py4j, which comes with Spark.
    """

    def __init__(self, java: str, jars: Path) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        # It ends with its standard input, and so with this process.
        port, token, self._process = launch_gateway(
            classpath=f"{jars}{os.sep}*",
            javaopts=[*options, quiet],
            java_path=java,
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
        java_io = self._gateway.jvm.java.io
        self._output, self._errors = java_io.ByteArrayOutputStream(), java_io.ByteArrayOutputStream()
        # Scala keeps the streams that it finds when it prints first.
        system = self._gateway.jvm.java.lang.System
        system.setOut(java_io.PrintStream(self._output, True, "UTF-8"))
        system.setErr(java_io.PrintStream(self._errors, True, "UTF-8"))

    def stop(self) -> None:
        self._gateway.close()
        self._process.stdin.close()
        self._process.wait()

    def dump(self, files: Sequence[Path], *options: str) -> Dumped:
        """Run it over these files with these options (beside --files)."""
        from py4j.protocol import Py4JJavaError

        assert files, "there is nothing to dump"
        arguments = ["--files", ",".join(map(str, files)), *options]
        array = self._gateway.new_array(self._gateway.jvm.java.lang.String, len(arguments))
        for number, argument in enumerate(arguments):
            array[number] = argument
        self._output.reset()
        self._errors.reset()
        try:
            self._gateway.jvm.kafka.tools.DumpLogSegments.main(array)
            failure = ""
        except Py4JJavaError as error:
            failure = str(error)
        output: dict[str, list[str]] = {}
        lines: list[str] = []
        for line in self._output.toString("UTF-8").splitlines():
            if line.startswith("Dumping "):
                lines = output.setdefault(line.removeprefix("Dumping "), [])
            else:
                lines.append(line)
        return Dumped(output, [*self._errors.toString("UTF-8").splitlines(), *failure.splitlines()])

    def complaints(self, logs: Sequence[Path], *, emptied: bool = False) -> list[str]:
        return self.checked(logs, emptied=emptied).complaints

    def checked(self, logs: Sequence[Path], *, emptied: bool = False) -> Checked:
        """What it has against these segments and the indexes beside them; empty if it accepts them all.

        Gaps between offsets are none: the cleaner leaves them, as do aborted transactions of ours. `emptied`: nor are
        entries of a time index that name batches of which the cleaner left the header only (Kafka's own do, too).
        """
        indexes = [log.with_suffix(suffix) for log in logs for suffix in (".index", ".timeindex")]
        found = [f"{file} is missing" for file in indexes if not file.exists()]
        if found:
            return Checked(found, Dumped({}, []))
        markers = [file for log in logs if (file := log.with_suffix(".txnindex")).exists()]
        deep = self.dump([*logs, *markers], "--deep-iteration")
        found += without_gaps(deep.errors)
        for log in logs:
            found += [f"{log}: {line}" for line in _wrong(deep.files.get(str(log)))]
        for file in markers:
            lines = deep.files.get(str(file), [])
            if len(lines) * MARKER_BYTES != file.stat().st_size:
                found.append(f"{file} has {file.stat().st_size} bytes: {lines}")
        verified = self.dump(indexes, "--verify-index-only").errors
        found += without_emptied(verified) if emptied else verified
        sane = self.dump(indexes, "--index-sanity-check")
        found += sane.errors
        found += [
            f"{file}: {printed}"
            for file in indexes
            if (printed := sane.files.get(str(file))) != [f"{file} passed sanity check."]
            and (file.stat().st_size or printed != [f"{file} is empty."])
        ]
        return Checked(found, deep)


def find_tools() -> KafkaTools:
    """The tools, jars fetched at first use. `Missing` without Java, Spark's Ivy or a network."""
    return KafkaTools(find_java(), kafka_jars())


def kafka_jars() -> Path:
    """The folder of Kafka's jars, broker included, fetched at first use. `Missing` as above."""
    given = os.environ.get(JARS_VARIABLE)
    if given:
        return Path(given)
    return fetched_jars(f"kafka-{KAFKA_VERSION}", _IVY, f"kafka_2.13-{KAFKA_VERSION}.jar")


def fetched_jars(name: str, ivy: str, proof: str) -> Path:
    """The folder of what an Ivy file names, fetched at first use; the jar `proof` must be among it. `Missing` as
    above."""
    folder = cache_folder() / name
    if not (folder / COMPLETE).exists():
        if folder in _missing:
            raise Missing(_missing[folder])
        try:
            _resolve(find_java(), folder, ivy, proof)
        except Missing as reason:
            _missing[folder] = str(reason)
            raise
    return folder


def cache_folder() -> Path:
    """Where a user's programs keep what they can fetch again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparklog-tests"


def without_gaps(errors: Iterable[str]) -> list[str]:
    """Lines of standard error that do not say "Non-consecutive offsets"."""
    left, gaps = [], False
    for line in errors:
        if line.startswith("Non-consecutive offsets in "):
            gaps = True
        elif not (gaps and " is followed by " in line):
            gaps = False
            left.append(line)
    return left


def without_emptied(errors: Iterable[str]) -> list[str]:
    """Lines of standard error that do not say that a time index names a batch without records."""
    left: list[str] = []
    for line in errors:
        if left and left[-1].startswith("Found timestamp mismatch in :") and line.endswith(", log timestamp: -1"):
            continue
        if left and left[-1].startswith("Found timestamp mismatch in :") and not line.startswith("  "):
            left.pop()
        left.append(line)
    return left[:-1] if left and left[-1].startswith("Found timestamp mismatch in :") else left


def _wrong(lines: list[str] | None) -> Iterator[str]:
    """Lines of a `.log`'s dump that say something is wrong."""
    if lines is None:
        yield "was not dumped"
        return
    count = 0
    counted = True
    for line in lines:
        batch = _BATCH.match(line)
        if (first := batch or _OLD_MESSAGE.match(line)) is not None:
            if count:
                yield f"{count} records are missing before: {line}"
            # Wrappers of formats v0 and v1 do not say how many messages they hold.
            counted = batch is not None
            count = int(batch[3]) if batch is not None else 0
            if first[1 if batch is None else 4] != "true":
                yield line
        elif line.startswith("| "):
            count -= counted
            if "isValid: false" in line:
                yield line
        elif not line.startswith("Log starting offset: "):
            yield line
    if count:
        yield f"{count} records are missing at the end"


def find_java() -> str:
    """The `java` of JAVA_HOME or the PATH, else `Missing`."""
    home = os.environ.get("JAVA_HOME")
    candidates = [shutil.which("java", path=f"{home}/bin")] if home else []
    found = next(filter(None, [*candidates, shutil.which("java")]), None)
    if found is None:
        raise Missing("Kafka's tools need Java 17 or newer: there is no `java` on the PATH and no JAVA_HOME")
    return found


def _resolve(java: str, folder: Path, ivy_file: str, proof: str) -> None:
    """Fetch the jars to `folder`: whole or not there, however many runs begin at once."""
    try:
        import pyspark
    except ImportError:
        raise Missing("Kafka's jars are fetched with the Ivy that pyspark brings: install sparklog[spark]") from None
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"), None)
    if ivy is None:
        raise Missing("there is no Ivy among pyspark's jars")
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=folder.name + "-", dir=folder.parent))
    try:
        (work / "ivy.xml").write_text(ivy_file)
        (work / "settings.xml").write_text(_SETTINGS)
        command = [
            *(java, "-Xmx256m", "-jar", str(ivy), "-warn", "-cache", str(work / "cache")),
            *("-settings", str(work / "settings.xml"), "-ivy", str(work / "ivy.xml"), "-confs", "default"),
            *("-types", "jar", "bundle", "-retrieve", f"{work}/jars/[artifact]-[revision](-[classifier]).[ext]"),
        ]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=RESOLVE_SECONDS, check=False)
        if answer.returncode or not (work / "jars" / proof).exists():
            said = " | ".join(line.strip() for line in (answer.stdout + answer.stderr).splitlines() if line.strip())
            raise Missing(f"Kafka's jars cannot be fetched (set {JARS_VARIABLE} to a folder of them): {said[-300:]}")
        (work / "jars" / COMPLETE).touch()
        try:
            (work / "jars").rename(folder)
        except OSError:
            if not (folder / COMPLETE).exists():
                raise
    except subprocess.TimeoutExpired:
        raise Missing(f"Kafka's jars were not fetched within {RESOLVE_SECONDS} s") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
