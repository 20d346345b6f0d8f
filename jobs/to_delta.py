"""The job `to-delta` as a file for spark-submit: see `sparklog.jobs.to_delta` with `--checkpoint`, and
`sparklog.jobs.to_delta_without_spark` without it.
"""

import sys

try:
    if any(word.partition("=")[0] == "--checkpoint" for word in sys.argv):
        from sparklog.jobs.to_delta import main
    else:
        from sparklog.jobs.to_delta_without_spark import main
except ModuleNotFoundError as missing:
    extra = "deltalake" if missing.name == "deltalake" else "delta"
    install = f"pip install '.[{extra}]' in a checkout, or start it with the Python of an environment that has it"
    sys.exit(f"sparklog to-delta: Python at {sys.executable} has no module {missing.name}: {install}")
except KeyboardInterrupt:
    print("sparklog to-delta: interrupted; nothing was changed", file=sys.stderr)
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
