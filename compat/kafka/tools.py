"""Run a main class of Kafka, as its shell scripts do."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from compat.kafka.jvm import QUICK_START, java_command, java_environment
from compat.kafka.resident import tool_server


def run_tool(
    main_class: str,
    *arguments: str,
    input: str | None = None,
    timeout_s: float = 60,
    options: Sequence[str] = QUICK_START,
) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end; standard output and error are text. The caller checks the return code.

    It shares a JVM with the tools before it (see `compat.kafka.resident`), but not if it has options of its own, is a
    source file, or the shared JVM is in use.
    """
    server = tool_server() if options is QUICK_START and not main_class.endswith(".java") else None
    done = server and server.run(main_class, arguments, input=input, timeout_s=timeout_s)
    if done is not None:
        return done
    return subprocess.run(
        java_command(main_class, *arguments, options=options),
        input=input,
        stdin=subprocess.DEVNULL if input is None else None,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=java_environment(),
        check=False,
    )


def tool(name: str, *arguments: str) -> str:
    """Run a class of `kafka.` or of org.apache.kafka.tools; returns its output. Errors: AssertionError if it fails."""
    done = run_tool(name if name.startswith("kafka.") else f"org.apache.kafka.tools.{name}", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def start_tool(main_class: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a tool with pipes for its standard output and error."""
    return subprocess.Popen(
        java_command(main_class, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=java_environment(),
    )
