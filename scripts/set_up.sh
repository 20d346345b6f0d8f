#!/bin/sh
# Make or bring up to date the virtual environment: scripts/set_up.sh <folder> <python>
# A suitable interpreter is found (the one given, else python3.12, 3.11, 3.10), the machine is checked, all is installed.
set -eu

venv=$1
wanted=$2
check=scripts/check_machine.py

python=""
for candidate in "$venv/bin/python" "$wanted" python3.12 python3.11 python3.10; do
    if command -v "$candidate" >/dev/null 2>&1 && "$candidate" "$check" python 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    if command -v "$wanted" >/dev/null 2>&1 && "$wanted" -c "" 2>/dev/null; then
        "$wanted" "$check" python
    fi
    echo "sparklog needs Python 3.10 or newer, found no working $wanted: install it, or make PYTHON=<path>" >&2
    exit 1
fi
"$python" "$check"

install() {
    # Python compiles a module when it is imported first: pip would take 40 s for 10,000 of them, most of which nothing
    # here imports.
    "$venv/bin/python" scripts/install.py --no-compile "$@"
}

echo "downloading what sparklog and its tests need: about 700 MB, most of it PySpark; pip keeps it for the next time"
if [ "$python" = "$venv/bin/python" ]; then
    # The newest of everything, also where an older one that would do is there.
    install --upgrade --upgrade-strategy eager -e ".[spark,connect,state,dev,docs]"
    exit 0
fi
echo "setting up $venv with $("$python" --version); once, it takes minutes"
"$python" -m venv --clear "$venv"
# PySpark comes as source, of which pip makes a wheel, a minute of one processor: here beside all other packages. Its
# jars are compressed already, to compress them again is half of that time.
wheels=$(cd "$venv" && pwd)/wheels
mkdir "$wheels"
printf '[bdist_wheel]\ncompression = stored\n' >"$wheels/stored.cfg"
DIST_EXTRA_CONFIG=$wheels/stored.cfg "$venv/bin/python" -m pip --quiet --disable-pip-version-check wheel --no-deps \
    --wheel-dir "$wheels" "$(sed -n 's/^spark = \["\(pyspark[^"]*\)".*/\1/p' pyproject.toml)" &
building=$!
trap 'kill "$building" 2>/dev/null || true; rm -rf "$wheels"' EXIT
install -e ".[dev,docs]"
wait "$building"
install --find-links "$wheels" -e ".[spark,connect,state,dev,docs]"
