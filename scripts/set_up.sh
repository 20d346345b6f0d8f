#!/bin/sh
# Create or update the virtual environment: scripts/set_up.sh <directory> <python>
# The script finds a suitable interpreter (the given Python, python3.12, 3.11 or 3.10), checks the host and installs packages.
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
    echo "sparklog requires Python 3.10 or newer, found no working $wanted; install it, or make PYTHON=<path>" >&2
    exit 1
fi
"$python" "$check"

install() {
    # Python compiles modules on their first import. pip would take 40 s to compile 10,000 modules, most of which are never
    # imported.
    "$venv/bin/python" scripts/install.py --no-compile "$@"
}

echo "downloading the dependencies of sparklog and its tests: about 700 MB, mostly PySpark; pip caches them for the next time"
if [ "$python" = "$venv/bin/python" ]; then
    # Upgrade all packages to their latest versions, even if the installed versions are sufficient.
    install --upgrade --upgrade-strategy eager -e ".[spark,connect,state,dev,docs]"
    exit 0
fi
echo "setting up $venv with $("$python" --version), which takes minutes the first time"
"$python" -m venv --clear "$venv"
# PySpark is a source distribution, from which pip builds a wheel in a minute of CPU time. Build the wheel while the other
# packages are installed, without compression, because compressing the jars again would take half of the time.
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
