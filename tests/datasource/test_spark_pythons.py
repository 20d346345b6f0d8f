"""The Python that Spark starts for each kind of process. The test programs append their name to a file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.datasource import spark_session
from tests.datasource.cluster import Cluster
from tests.datasource.cluster_driver import SETTINGS

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(3600)]

PROGRAM = """
import sys
import sparklog
from pyspark.sql import SparkSession

spark = sparklog.configure(SparkSession.builder.config(map=SETTINGS)).getOrCreate()
if REGISTERS:
    sparklog.register(spark)
root = sys.argv[1]
rows = spark.range(0, 100, 1, 4).selectExpr("cast(id as string) AS key", "cast(id as string) AS value")
rows.write.format("sparklog").option("topic", "in").option("num.partitions", 4).mode("append").save(root)
records = spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(f"{root}/in")
copy = records.select("key", "value").writeStream.format("sparklog").option("topic", "out")
copy.option("checkpointLocation", f"{root}-checkpoint").trigger(availableNow=True).start(root).awaitTermination()
print("records:", spark.read.format("sparklog").load(f"{root}/out").count())
spark.stop()
"""


class Machines:
    """Two environments, for the driver and for executors, and a `python3` on the PATH without packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.driver = self._environment("driver")
        self.executor = self._environment("executor")
        (folder / "path").mkdir()
        self._program(folder / "path" / "python3", "path", f"{sys.executable} -S")
        self.archive = folder / "env.tar.gz"
        with tarfile.open(self.archive, "w:gz") as archive:
            archive.add(folder / "executor", ".")

    def _environment(self, name: str) -> str:
        """Create an environment like `python3 -m venv`, with the packages of this environment."""
        scripts = self.folder / name / "bin"
        scripts.mkdir(parents=True)
        shutil.copy(Path(sys.prefix) / "pyvenv.cfg", scripts.parent)
        (scripts.parent / "lib").symlink_to(Path(sys.prefix) / "lib")
        for python in ("python3", "python"):
            (scripts / python).symlink_to(sys.executable)
        program = scripts / "sparklog-python"
        self._program(program, name, '"${0%/*}/python3"')
        return str(program)

    def _program(self, path: Path, name: str, command: str) -> None:
        path.write_text(f'#!/bin/sh\necho "{name} $PWD $*" >> {self.log}\nexec {command} "$@"\n')
        path.chmod(0o755)

    def processes(self) -> dict[str, set[str]]:
        """Return the names of the environments by kind of process, and the directories of the task processes."""
        ran = defaultdict(set)
        for line in self.log.read_text().splitlines():
            name, folder, *arguments = line.split()
            kind = arguments[-1] if arguments[0] == "-m" else arguments[0]
            if kind == "pyspark.worker":
                ran["tasks"].add(name)
                ran["folders of tasks"].update(part for part in folder.split("/") if part.startswith("worker-"))
            elif kind.endswith("lookup_data_sources"):
                ran["search"].add(name)
            elif kind.startswith("pyspark.sql."):
                ran["planning"].add(name)
            elif kind.endswith(".py"):
                ran["program"].add(name)
        return dict(ran)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    yield running
    running.stop()


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    if not (Path(sys.prefix) / "pyvenv.cfg").is_file():
        pytest.skip("this Python is not one of a virtual environment")
    return Machines(tmp_path)


Given = dict[str, str]


@pytest.mark.parametrize(
    ("master", "settings", "environ", "registers", "expected"),
    [
        pytest.param(
            "cluster",
            {"spark.pyspark.driver.python": "DRIVER", "spark.pyspark.python": "EXECUTOR"},
            {},
            True,
            {"program": "driver", "planning": "driver", "tasks": "executor", "search": "path"},
            id="both settings",
        ),
        pytest.param(
            "cluster",
            {"spark.pyspark.python": "EXECUTOR"},
            {"PYSPARK_DRIVER_PYTHON": "DRIVER"},
            True,
            {"program": "executor", "planning": "executor", "tasks": "executor", "search": "driver"},
            id="a setting and the driver's variable",
        ),
        pytest.param(
            "cluster",
            {
                "spark.archives": "ARCHIVE#env",
                "spark.pyspark.python": "./env/bin/sparklog-python",
                "spark.pyspark.driver.python": "DRIVER",
            },
            {},
            True,
            {"program": "driver", "planning": "driver", "tasks": "executor", "search": "path"},
            id="an archive",
        ),
        pytest.param(
            "cluster",
            {},
            {"PYSPARK_PYTHON": "EXECUTOR", "PYSPARK_DRIVER_PYTHON": "DRIVER"},
            False,
            {"program": "driver", "planning": "driver", "tasks": "executor", "search": "driver"},
            id="variables, without register",
        ),
        pytest.param(
            "local[2]",
            {"spark.pyspark.python": "DRIVER"},
            {},
            True,
            {"program": "driver", "planning": "driver", "tasks": "driver", "search": "path"},
            id="local",
        ),
        pytest.param(
            None,
            {},
            {"PYSPARK_PYTHON": "EXECUTOR"},
            False,
            {"planning": "driver", "tasks": "executor", "search": "driver"},
            id="started by Python",
        ),
    ],
)
def test_each_process_runs_its_python(
    machines: Machines,
    request: pytest.FixtureRequest,
    master: str | None,
    settings: Given,
    environ: Given,
    registers: bool,
    expected: dict[str, str],
) -> None:
    """`master` is the option of spark-submit. If it is None, the program is started by `python3`, and sets the cluster
    itself.
    """
    import pyspark

    named = {"DRIVER": machines.driver, "EXECUTOR": machines.executor, "ARCHIVE": str(machines.archive)}

    def resolve(values: Given) -> Given:
        for name, path in named.items():
            values = {key: value.replace(name, path) for key, value in values.items()}
        return values

    url = master if master == "local[2]" else request.getfixturevalue("cluster").master
    home = Path(pyspark.__file__).parent
    of_submit = resolve({**SETTINGS, **settings})
    of_submit |= {"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    program = machines.folder / "program.py"
    own = {} if master else {**of_submit, "spark.master": url}
    program.write_text(PROGRAM.replace("SETTINGS", repr(own)).replace("REGISTERS", repr(registers)))
    command = [f"{home}/bin/spark-submit", "--master", url]
    command += [word for name, value in of_submit.items() for word in ("--conf", f"{name}={value}")]
    if master is None:
        command = [str(Path(machines.driver).parent / "python3")]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    given = {**kept, **spark_session.environment(), "SPARK_HOME": str(home)}
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        del given[name]
    given |= {"PATH": f"{machines.folder}/path:{os.environ['PATH']}"}
    given |= resolve(environ)
    done = subprocess.run(
        [*command, str(program), str(machines.folder / "root")],
        cwd=machines.folder,
        env=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert "records: 100" in done.stdout
    ran = machines.processes()
    folders = ran.pop("folders of tasks")
    assert ran == {kind: {name} for kind, name in expected.items()}
    assert folders == ({"worker-0", "worker-1"} if master != "local[2]" else set())
