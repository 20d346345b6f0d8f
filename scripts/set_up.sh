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

if [ "$python" != "$venv/bin/python" ]; then
    echo "setting up $venv with $("$python" --version); once, it takes minutes"
    "$python" -m venv --clear "$venv"
fi
echo "downloading what sparklog and its tests need: about 700 MB, most of it PySpark; pip keeps it for the next time"
# The newest of everything, also where an older one that would do is there. Python compiles a module when it is imported
# first: pip would take 40 s for 10,000 of them, most of which nothing here imports.
"$venv/bin/python" scripts/install.py --no-compile --upgrade --upgrade-strategy eager \
    -e ".[spark,connect,state,dev,docs]"
