"""The job `retain` as a file for spark-submit: see `sparklog.jobs.retain`."""

import sys

try:
    from sparklog.jobs.retain import main
except ModuleNotFoundError as missing:
    install = "pip install '.[spark]' in a checkout, or start it with the Python of an environment that has it"
    sys.exit(f"sparklog retain: Python at {sys.executable} has no module {missing.name}: {install}")
except KeyboardInterrupt:
    print("sparklog retain: interrupted; nothing was changed", file=sys.stderr)
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
