"""The job `to-delta` as a file for spark-submit: see `sparklog.jobs.to_delta` with `--checkpoint`, and
`sparklog.jobs.to_delta_without_spark` without it.
"""

import sys
from importlib import import_module

try:
    from sparklog.jobs import job_module

    main = import_module(f"sparklog.jobs.{job_module('to-delta', sys.argv)}").main
except ModuleNotFoundError as missing:
    extra = "deltalake" if missing.name == "deltalake" else "delta"
    install = f"pip install '.[{extra}]' in a checkout, or start it with the Python of an environment that has it"
    sys.exit(f"sparklog to-delta: Python at {sys.executable} has no module {missing.name}: {install}")
except KeyboardInterrupt:
    print("sparklog to-delta: interrupted; nothing was changed", file=sys.stderr)
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
