"""sparklog beside its peers, in one command: `make bench-peers [ROUNDS=5] [RECORDS=2000000]`.

Run: `python -m benchmarks peers [--rounds N] [--records N] [--only local,servers,spark] [--results FILE] [--page]`.

Peers are a broker of Kafka with Spark's connector (as it comes, and tuned), Kafka's cleaner, its performance tools and
confluent-kafka, Delta, Parquet by Spark and by pyarrow, and a bare data source. Variants take turns (A B C, then C B A)
after a round that warms up. One document of results has the machine, the date, the command, versions and every round;
what could not be measured is named there. docs/design/peers.md is made of it; `--page` makes the page alone.
Needs pyspark 4.2, Java and, once, a network for the jars.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import peers_page
from bench_spark import compare

import sparklog
from tests.datasource.live_delta import DELTA_VERSION
from tests.datasource.live_kafka import CONNECTOR_VERSION
from tests.kafka_tools import KAFKA_VERSION

RESULTS = Path(__file__).with_name("peers.json")
PACKAGES = ("pyspark", "pyarrow", "numpy", "numba", "confluent-kafka", "kafka-python")


def main() -> None:
    """Measure each section; what fails is named in the results, and the others go on."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--only", default="local,servers,spark", help="sections, with commas between them")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="measure nothing")
    chosen = parser.parse_args()
    if not chosen.page:
        measure(chosen)
    peers_page.write(json.loads(chosen.results.read_text()))


def measure(chosen: argparse.Namespace) -> None:
    """Write the results after each work, so that a run that is stopped leaves what it has."""
    from peer_works import SECTIONS, Setting, Work, keep

    missing = [f"{section}: left out by --only" for section in SECTIONS if section not in chosen.only.split(",")]
    works: list[dict[str, Any]] = []
    about = {**surroundings("peers"), "rounds": chosen.rounds, "records": chosen.records}
    results = {**about, "missing": missing, "works": works}
    folder = Path(tempfile.mkdtemp(prefix="sparklog-peers-"))
    begun = time.perf_counter()

    def measured(work: Work) -> dict[str, Any]:
        variants: dict[str, dict[str, Any]] = {}
        for name, runs in compare(work.variants, chosen.rounds).items():
            variants[name] = {"rounds": [*map(keep, runs)]}
            if name in work.places:
                variants[name]["bytes"] = sum(path.stat().st_size for path in work.places[name]())
        return {"name": work.name, "about": work.about, "records": work.records, "variants": variants}

    try:
        for section in chosen.only.split(","):
            try:
                for work in SECTIONS[section](Setting(folder, chosen.records, missing)):
                    works.append(measured(work))
                    results["seconds"] = round(time.perf_counter() - begun)
                    chosen.results.write_text(json.dumps(results, indent=1) + "\n")
                    print(*peers_page.table(works[-1]), sep="\n", flush=True)
            except (Exception, SystemExit) as error:  # noqa: BLE001
                missing.append(f"the rest of '{section}': {type(error).__name__}: {' '.join(str(error).split())[:200]}")
                print(missing[-1], flush=True)
        chosen.results.write_text(json.dumps(results, indent=1) + "\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def surroundings(benchmark: str) -> dict[str, Any]:
    """Machine, date, command, versions."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    return {
        "machine": f"{len(models)} cores, {models[0].partition(': ')[2]}, {memory:.0f} GiB, {platform.platform()}",
        "load": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": " ".join([f"python -m benchmarks {benchmark}", *sys.argv[1:]]),
        "versions": {
            "Python": platform.python_version(),
            "sparklog": sparklog.__version__,
            "Java": java[0].split('"')[1] if java else "none",
            **{name: found for name in PACKAGES if (found := _version(name))},
            "Kafka": KAFKA_VERSION,
            "Spark's Kafka connector": CONNECTOR_VERSION,
            "Delta": DELTA_VERSION,
        },
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    main()
