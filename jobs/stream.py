"""The job `stream` as a file for spark-submit: see `sparklog.jobs.stream`."""

from __future__ import annotations

import sys

from sparklog.jobs.stream import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
