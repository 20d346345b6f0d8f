#!/bin/sh
# Run tests with a Spark release: scripts/spark_version.sh <environment> <release> [pytest arguments]
# A release such as 4.1 has a separate environment, .venv-spark-4.1, with the latest PySpark of the release. All other packages
# are those of <environment>. By default, all tests that start Spark are run, except slow tests.
set -eu

base=$1
release=$2
shift 2
case $release in
    [0-9]*.[0-9]*) ;;
    *) echo "expected a Spark release such as 4.1, found '$release'; example: make test-spark SPARK=4.1" >&2; exit 2 ;;
esac
venv=$PWD/.venv-spark-$release
python=$venv/bin/python
site='import sysconfig; print(sysconfig.get_path("purelib"))'

if [ ! -e "$venv/.installed" ]; then
    "$base/bin/python" -m venv --clear "$venv"
    # Install PySpark before the other packages are visible, because pip would try to replace the existing PySpark.
    case $release in *.*.*) wanted="pyspark==$release" ;; *) wanted="pyspark==$release.*" ;; esac
    "$python" scripts/install.py "$wanted"
    echo "import site; site.addsitedir('$("$base/bin/python" -c "$site")')" >"$("$python" -c "$site")/base.pth"
    touch "$venv/.installed"
fi

# Spark starts its Python processes with this script, as in an installed environment (see sparklog.datasource.session).
cp "$(dirname "$0")/../conf/sparklog-python" "$venv/bin/"
export PYSPARK_PYTHON="$python" PYSPARK_DRIVER_PYTHON="$python"
"$python" -c 'import sys, pyspark; print("Spark", pyspark.__version__, "with Python", sys.version.split()[0])'
if [ $# -eq 0 ]; then
    set -- -m "spark and not slow" tests
fi
exec "$python" -m pytest "$@"
