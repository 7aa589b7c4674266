"""A newcomer has none of the tools that compat needs. Its tests are skipped then, and must not fail while collected."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compat.brokers import in_ci

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.skipif(not in_ci(), reason="without the tools, `make test` itself shows it")
def test_every_test_can_be_collected_without_the_tools(tmp_path: Path) -> None:
    kept = {key: value for key, value in os.environ.items() if key not in ("CI", "JAVA_HOME", "KBROKER_KAFKA_LIBS")}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-o", f"cache_dir={tmp_path}/cache", "compat"]
    done = subprocess.run(
        command,
        cwd=CHECKOUT,
        env=kept | {"PATH": str(tmp_path), "KBROKER_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
