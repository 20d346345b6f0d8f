"""The job `to-iceberg` as a file for spark-submit: see `sparklog.jobs.to_iceberg`."""

import sys

try:
    from sparklog.jobs.to_iceberg import main
except ModuleNotFoundError as missing:
    install = "pip install '.[iceberg]' in a checkout, or start it with the Python of an environment that has it"
    sys.exit(f"sparklog to-iceberg: Python at {sys.executable} has no module {missing.name}: {install}")
except KeyboardInterrupt:
    print("sparklog to-iceberg: interrupted; nothing was changed", file=sys.stderr)
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
