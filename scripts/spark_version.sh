#!/bin/sh
# Run tests with one release of Spark: scripts/spark_version.sh <environment> <release> [pytest arguments]
# The release, such as 4.1, gets an environment of its own, .venv-spark-4.1: its newest PySpark on top of all else that
# <environment> has. Without arguments these are all tests that start Spark, but for the slow ones.
set -eu

base=$1
release=$2
shift 2
case $release in
    [0-9]*.[0-9]*) ;;
    *) echo "expected a release of Spark such as 4.1, found '$release': make test-spark SPARK=4.1" >&2; exit 2 ;;
esac
venv=$PWD/.venv-spark-$release
python=$venv/bin/python
site='import sysconfig; print(sysconfig.get_path("purelib"))'

if [ ! -e "$venv/.installed" ]; then
    "$base/bin/python" -m venv --clear "$venv"
    # Before the rest can be seen: pip would take its PySpark for the one to replace.
    case $release in *.*.*) wanted="pyspark==$release" ;; *) wanted="pyspark==$release.*" ;; esac
    "$python" scripts/install.py "$wanted"
    echo "import site; site.addsitedir('$("$base/bin/python" -c "$site")')" >"$("$python" -c "$site")/base.pth"
    touch "$venv/.installed"
fi

export PYSPARK_PYTHON="$python" PYSPARK_DRIVER_PYTHON="$python"
"$python" -c 'import sys, pyspark; print("Spark", pyspark.__version__, "with Python", sys.version.split()[0])'
if [ $# -eq 0 ]; then
    set -- -m "spark and not slow" tests
fi
exec "$python" -m pytest "$@"
