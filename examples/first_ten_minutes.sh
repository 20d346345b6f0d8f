#!/bin/sh
# Install and use sparklog on a host that has only Python and Java. Print the time of each step:
#
#     sh examples/first_ten_minutes.sh FOLDER [SOURCE [PYTHON]]
#
# The script creates FOLDER with a Python environment, a root and a report. SOURCE is a clone (default: this clone) or a
# wheel, which pip installs.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:?specify a new folder}
source=${2:-$here}
python=${3:-python3}

mkdir "$folder"
cd "$folder"
started=$(date +%s)
step() {
    printf '%4s s  %s\n' "$(($(date +%s) - started))" "$1"
}

step "install: $source[spark]"
"$python" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check "$source[spark]"
PATH=$folder/env/bin:$PATH
SPARKLOG_ROOT=$folder/log
export PATH SPARKLOG_ROOT

step "create a topic, write and read without Spark"
sparklog topics create visits --partitions 2
printf 'anna:/home\ncarl:/cart\n' | sparklog produce visits --key-separator :
sparklog consume visits --print-key

step "write, read and stream with Spark"
cat > first.py <<'PYTHON'
import os

import sparklog
from pyspark.sql import SparkSession

root = os.environ["SPARKLOG_ROOT"]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = sparklog.configure(builder).getOrCreate()
clicks = spark.createDataFrame([("anna", "/home"), ("carl", "/cart")], "key string, value string")
clicks.write.format("sparklog").option("topic", "clicks").mode("append").save(root)
print(spark.read.format("sparklog").load(f"{root}/clicks").count(), "records in clicks")
tail = spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(f"{root}/clicks")
copy = tail.select("key", "value").writeStream.format("sparklog").option("topic", "clicks-copy")
query = copy.option("checkpointLocation", f"{root}-checkpoint").trigger(availableNow=True).start(root)
query.awaitTermination()
print(spark.read.format("sparklog").load(f"{root}/clicks-copy").count(), "records in clicks-copy")
spark.stop()
PYTHON
python first.py 2> spark.log || { cat spark.log >&2; exit 1; }

step "compact, retain"
sparklog compact 2>> spark.log
sparklog retain 2>> spark.log

step "report, verify"
sparklog report --html report.html
sparklog verify
step "done"
