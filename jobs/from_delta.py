"""The job `from-delta` as a file for spark-submit: see `sparklog.jobs.from_delta`."""

import sys

try:
    from sparklog.jobs.from_delta import main
except ModuleNotFoundError as missing:
    install = "pip install '.[delta]' in a checkout, or start it with the Python of an environment that has it"
    sys.exit(f"sparklog from-delta: Python at {sys.executable} has no module {missing.name}: {install}")
except KeyboardInterrupt:
    print("sparklog from-delta: interrupted; nothing was changed", file=sys.stderr)
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
