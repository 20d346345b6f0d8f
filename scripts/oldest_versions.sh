#!/bin/sh
# Run tests with the lowest versions that pyproject.toml allows: scripts/oldest_versions.sh <environment> [pytest arguments]
# The versions are installed into a separate environment, .venv-oldest, with Python 3.10 if it is installed, otherwise with
# the Python of <environment>. By default, all tests are run except slow tests and tests that need Java.
set -eu

base=$1
shift
venv=$PWD/.venv-oldest
python=$venv/bin/python
lowest=$venv/lowest.txt

if [ ! -e "$venv/.installed" ] || [ pyproject.toml -nt "$venv/.installed" ]; then
    oldest=$base/bin/python
    if python3.10 scripts/check_machine.py python 2>/dev/null; then oldest=python3.10; fi
    "$oldest" -m venv --clear "$venv"
    "$python" scripts/dependency_versions.py lowest >"$lowest"
    # Newer releases of pip have a separate setting for build dependencies.
    PIP_CONSTRAINT=$lowest PIP_BUILD_CONSTRAINT=$lowest "$python" scripts/install.py -e ".[spark,connect,state,dev]"
    touch "$venv/.installed"
fi

export PYSPARK_PYTHON="$python" PYSPARK_DRIVER_PYTHON="$python"
"$python" scripts/dependency_versions.py installed
if [ $# -eq 0 ]; then
    set -- -m "not slow and not spark and not java" tests
fi
exec "$python" -m pytest "$@"
