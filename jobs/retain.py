"""The job `retain` as a file for spark-submit: see `sparklog.jobs.retain`."""

from __future__ import annotations

import sys

from sparklog.jobs.retain import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
