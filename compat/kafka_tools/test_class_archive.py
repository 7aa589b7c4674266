"""Kafka's tools use the class archive if it exists, and work without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.kafka.archive import class_archive
from compat.kafka.jvm import QUICK_START, java_command
from compat.kafka.libraries import Unavailable
from compat.kafka.tools import run_tool, start_tool

TOOL = "org.apache.kafka.tools.TopicCommand"


@pytest.fixture(autouse=True)
def _found_anew(kafka_libraries: Path) -> Iterator[None]:
    """Clear the cached look-up, which is otherwise done once per process."""
    assert kafka_libraries.is_dir()
    class_archive.cache_clear()
    yield
    class_archive.cache_clear()


def test_a_tool_loads_its_classes_from_the_archive() -> None:
    if class_archive() is None:
        raise Unavailable("there is no archive of Kafka's classes: `python -m compat.kafka.rehearsal` makes it")
    done = run_tool(TOOL, "--version", options=(*QUICK_START, "-Xlog:class+load"))
    assert done.returncode == 0
    (line,) = [each for each in done.stdout.splitlines() if f" {TOOL} source:" in each]
    assert "shared objects file" in line


def test_a_tool_works_without_the_archive(
    kafka_libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KBROKER_CACHE", str(tmp_path))
    monkeypatch.setenv("KBROKER_KAFKA_LIBS", str(kafka_libraries))
    assert not any("SharedArchiveFile" in word for word in java_command(TOOL))
    started = start_tool(TOOL, "--version")
    assert started.communicate()[0].startswith("4.")
    assert started.returncode == 0
