"""`make demo` completes successfully."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.datasource import spark_session
from tests.datasource.spark_session import REPOSITORY


@pytest.mark.slow
@pytest.mark.usefixtures("spark_folder")
def test_the_demo_succeeds() -> None:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "examples" / "demo.py")],
        cwd=REPOSITORY,
        env={**os.environ, **spark_session.environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
