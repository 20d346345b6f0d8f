"""`sparklog doctor --spark` asks the session that runs, and leaves it running."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sparklog.tools.doctor.checks import OK, ask_spark, check_settings
from tests.tools.doctor.machines import EMPTY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_running_session_is_asked(spark: SparkSession) -> None:
    settings, (finding,) = ask_spark()
    assert finding.status == OK, finding
    assert f"Python {'.'.join(map(str, sys.version_info[:3]))}" in finding.found
    assert settings.source == "the session"
    assert [each.status for each in check_settings(EMPTY, settings)] == [OK, OK]
    assert spark.range(3).count() == 3
