"""`sparklog doctor --spark` checks a running session, and does not stop it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from sparklog.doctor.checks import ARROW_BYTES, OK, WARN, check_session, check_settings
from tests.doctor.machines import EMPTY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
def test_doctor_checks_a_running_session(spark: SparkSession) -> None:
    settings, (finding,) = check_session()
    assert finding.status == OK, finding
    assert f"Python {'.'.join(map(str, sys.version_info[:3]))}" in finding.found
    assert settings.source == "the session"
    assert [each.status for each in check_settings(EMPTY, settings)] == [OK, OK]
    assert spark.range(3).count() == 3


def test_doctor_checks_a_session_without_settings(spark: SparkSession) -> None:
    before = spark.conf.get(ARROW_BYTES)
    spark.conf.unset(ARROW_BYTES)
    try:
        settings, (finding,) = check_session()
    finally:
        spark.conf.set(ARROW_BYTES, before)
    assert finding.status == OK, finding
    setting = check_settings(EMPTY, settings)[0]
    assert (setting.status, "is not set in the session" in setting.found) == (WARN, True)
