"""The README's four calls, settings as options, and tables in SQL, on a bucket."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sparklog
from sparklog.storage.locations import join
from tests.datasource.streams import copy, finish, insert, source, values
from tests.support.moto_server import KEY_ID, SECRET
from tests.test_readme import DATA, README, snippets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_the_readme_with_a_bucket_in_place_of_the_path(spark: SparkSession, bucket: str, tmp_path: Path) -> None:
    program = "\n".join(snippets("python", README))
    program, replaced = re.subn(r"/data/(log[^\"]*)", lambda path: join(bucket, path[1]), program)
    assert replaced == 4
    names: dict[str, Any] = {}
    exec(compile(program.replace(DATA, f"{tmp_path}/"), "README.md", "exec"), names)
    assert [bytes(row.value) for row in names["seen"].collect()] == [b"/home", b"/cart"]
    assert sparklog.open(join(bucket, "log")).topic("clicks-copy").scan().to_table().num_rows == 2
    assert os.listdir(tmp_path) == ["checkpoints"]


def test_settings_as_options_and_tables(spark: SparkSession, bucket: str, tmp_path: Path) -> None:
    location = join(bucket, "log")
    plain, _, endpoint = location.partition("?endpoint=")
    settings = {"endpoint": endpoint, "fs.s3a.path.style.access": "true"}
    rows = spark.createDataFrame([(str(n), str(n)) for n in range(20)], "key string, value string")
    rows.write.format("sparklog").options(**settings).option("topic", "in").mode("append").save(plain)
    read = spark.read.format("sparklog").options(**settings).load(f"{plain}/in")
    assert read.count() == 20
    finish(copy(source(spark, f"{plain}/in", **settings), plain, tmp_path / "checkpoint", **settings))
    assert values(location, "out") == list(range(20))

    given = ", ".join(f"'{name}' '{value}'" for name, value in settings.items())
    spark.sql(f"CREATE TABLE bucket_table USING sparklog OPTIONS (path '{plain}/in', {given})")
    spark.sql(f"CREATE TABLE bucket_place USING sparklog LOCATION '{join(location, 'in')}'")
    for table in ("bucket_table", "bucket_place"):
        spark.sql(insert(table, "20", "20"))
    assert spark.sql("SELECT * FROM bucket_place").count() == 22
    plans = [str(frame._jdf.queryExecution()) for frame in (read, spark.sql("SELECT * FROM bucket_table"))]  # type: ignore[operator]
    written = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    for text in (*plans, *written, spark.sql("SHOW CREATE TABLE bucket_table").first()[0]):  # type: ignore[index]
        assert KEY_ID not in text
        assert SECRET not in text
    with pytest.raises(Exception, match=r"the options must not contain the secret fs.s3a.secret.key") as caught:
        spark.read.format("sparklog").options(**settings).option("fs.s3a.secret.key", SECRET).load(f"{plain}/in")
    assert SECRET not in str(caught.value)
    for table in ("bucket_table", "bucket_place"):
        spark.sql(f"DROP TABLE {table}")
