"""The job `verify` as a file for spark-submit: see `sparklog.jobs.verify`."""

from __future__ import annotations

import sys

from sparklog.jobs.verify import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
