"""Run a sparklog job with spark-submit:

    sparklog conf spark_job.py > spark_job.py
    spark-submit --master spark://host:7077 spark_job.py compact --root /data/log

The first argument is the job: compact, retain, verify, stream, mirror, to-delta, from-delta or to-iceberg. The
remaining arguments are those of the job; see for example `sparklog compact -h`.
"""

from __future__ import annotations

import sys
from importlib import import_module

JOBS = ("compact", "retain", "verify", "stream", "mirror", "to-delta", "from-delta", "to-iceberg")


def main(given: list[str]) -> int:
    name = given[0] if given else "nothing"
    if name not in JOBS:
        print(f"spark_job.py: expected one of {', '.join(JOBS)} as the first argument, found {name}", file=sys.stderr)
        return 2
    try:
        from sparklog.jobs import job_module

        job = import_module(f"sparklog.jobs.{job_module(name, given)}")
    except ModuleNotFoundError as missing:
        remedy = "install sparklog into the driver's Python, or ship an environment that has it (--archives)"
        print(f"spark_job.py: Python at {sys.executable} has no module {missing.name}: {remedy}", file=sys.stderr)
        return 2
    except ImportError as error:
        remedy = "install the release of sparklog that printed this file"
        print(f"spark_job.py: Python at {sys.executable} has another sparklog ({error}): {remedy}", file=sys.stderr)
        return 2
    return int(job.main(given[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
