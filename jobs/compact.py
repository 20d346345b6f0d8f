"""The job `compact` as a file for spark-submit: see `sparklog.jobs.compact`."""

from __future__ import annotations

import sys

from sparklog.jobs.compact import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
