"""A Maven fetch is complete or absent, even after failed attempts and with concurrent callers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import run

import pytest

from compat.kafka.libraries import ATTEMPTS, Unavailable, fetched

MAVEN = """#!/bin/sh
# Fails as often as there are lines in the file `failures`; notes when it begins, and whether another could have begun.
cd "$(dirname "$0")"
echo begins >>calls
flock -n "$KBROKER_CACHE/maven.lock" true && echo not-alone >>calls
for word in "$@"; do case "$word" in -DoutputDirectory=*) jars="${word#*=}" ;; esac; done
mkdir -p "$jars"
echo half >"$jars/one.jar"
if [ -s failures ]; then
    sed -i 1d failures
    exit 1
fi
echo whole >"$jars/two.jar"
"""
FETCH = """
import sys
from pathlib import Path
from compat.kafka.libraries import fetched
fetched(*map(Path, sys.argv[1:]))
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A fake mvn program; returns its recorded calls."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "mvn").write_text(MAVEN)
    (programs / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.setenv("KBROKER_CACHE", str(tmp_path / "cache"))
    return lambda: (programs / "calls").read_text().split()


def fail(tmp_path: Path, times: int) -> None:
    (tmp_path / "bin" / "failures").write_text("once\n" * times)


def test_a_failed_fetch_is_retried(calls: Callable[[], list[str]], tmp_path: Path) -> None:
    fail(tmp_path, ATTEMPTS - 1)
    target = tmp_path / "cache" / "some" / "jars"
    assert fetched(tmp_path / "pom.xml", target) == target
    assert sorted(path.name for path in target.iterdir()) == ["one.jar", "two.jar"]
    assert calls().count("begins") == ATTEMPTS
    fetched(tmp_path / "pom.xml", target)
    assert calls().count("begins") == ATTEMPTS, "once is enough"


def test_an_incomplete_fetch_leaves_no_directory(calls: Callable[[], list[str]], tmp_path: Path) -> None:
    fail(tmp_path, 100)
    target = tmp_path / "cache" / "some" / "jars"
    with pytest.raises(Unavailable, match="cannot fetch"):
        fetched(tmp_path / "pom.xml", target)
    assert list(target.parent.iterdir()) == []
    assert calls().count("begins") == ATTEMPTS


def test_only_one_maven_runs_at_a_time(calls: Callable[[], list[str]], tmp_path: Path) -> None:
    targets = [tmp_path / "cache" / name / "jars" for name in ("one", "two", "two", "three")]
    root = Path(__file__).parents[2]
    with ThreadPoolExecutor() as pool:
        commands = [[sys.executable, "-c", FETCH, str(tmp_path / "pom.xml"), str(target)] for target in targets]
        done = list(pool.map(lambda command: run(command, cwd=root, check=False).returncode, commands))
    assert done == [0] * len(targets)
    assert calls() == ["begins"] * 3, "the second caller for the same jars reused them"
