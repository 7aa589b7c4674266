"""The examples of docs/testing.md pass, and each one fails with the mistake that it is about."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

PAGE = Path(__file__).parents[2] / "docs/testing.md"
TESTS = ("test_leader_dies.py", "test_lost_reply.py", "test_slow_tier.py")

FETCH = "for record in await self.fetch(leader, position)"
MISTAKES = {
    "no time-outs": ("test_leader_dies.py", ", trio.TooSlowError)", ")"),
    "commits before": (
        "test_leader_dies.py",
        "self.handle(record)",
        "await self.commit(coordinator, record.offset + 1); self.handle(record)",
    ),
    "starts again": ("test_lost_reply.py", "position = await self.committed(coordinator)", "position = 0"),
    "ends early": ("test_slow_tier.py", FETCH, f"{FETCH} or await trio.sleep_forever()"),
}


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A directory with the files of the page."""
    for name, text in re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(text)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ("consumer.py", "conftest.py", "pytest.ini", *TESTS)
    )
    return tmp_path


def run_tests(directory: Path, *names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *names],
        check=False,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_examples_pass(examples: Path) -> None:
    done = run_tests(examples)
    assert done.returncode == 0, done.stdout
    assert "18 passed" in done.stdout


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_example_finds_its_mistake(mistake: str, examples: Path) -> None:
    test, right, wrong = MISTAKES[mistake]
    consumer = (examples / "consumer.py").read_text()
    assert consumer.count(right) == 1
    (examples / "consumer.py").write_text(consumer.replace(right, wrong))
    done = run_tests(examples, test)
    assert done.returncode == 1, done.stdout
