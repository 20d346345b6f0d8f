"""The job `mirror` as a file for spark-submit: see `sparklog.jobs.mirror`."""

from __future__ import annotations

import sys

from sparklog.jobs.mirror import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
