"""Runs the kafka-* commands of the container image from the checkout."""

from __future__ import annotations

import subprocess
import sys

from compat.brokers import CHECKOUT

TOOLS = CHECKOUT / "docker" / "kafka_tools"


def image_tool(tool: str, *words: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a tool such as "kafka-topics" to its end. The caller checks the return code."""
    command = [sys.executable, str(TOOLS), tool, *words]
    done = subprocess.run(command, input=input, capture_output=True, text=True, check=False, timeout=60)
    assert "Traceback" not in done.stderr, done.stderr
    return done
