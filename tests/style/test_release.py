"""The first step of `make release`, on a copy: the version, and changes/ joined into CHANGELOG.md."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker import __version__

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the files that are changed, with two fragments."""
    (tmp_path / "kbroker").mkdir()
    shutil.copy(ROOT / "kbroker" / "__init__.py", tmp_path / "kbroker")
    shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    changes = tmp_path / "changes"
    changes.mkdir()
    shutil.copy(ROOT / "changes" / "README.md", changes)
    (changes / "slow-links.md").write_text("Slow links are faster.\n\nSee [quotas](../docs/quotas.md).\n")
    (changes / "fetch.md").write_text("- Fetch 19.\n")
    return tmp_path


def prepare(checkout: Path, version: str, date: str = "2030-01-31") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci/release"), version, "--prepare-only", "--root", str(checkout)]
    return subprocess.run([*command, "--date", date], capture_output=True, text=True, check=False)


def test_changes_are_joined_once_and_removed(checkout: Path) -> None:
    before = (checkout / "CHANGELOG.md").read_text()
    for _ in range(2):  # a repeated run changes nothing
        assert prepare(checkout, "9.8.7").returncode == 0
        notes = (checkout / "CHANGELOG.md").read_text()
        added = "\n## 9.8.7 (2030-01-31)\n\n### Fetch\n\n- Fetch 19.\n\n### Slow links\n\nSlow links are faster.\n\n"
        assert f"{added}See [quotas](docs/quotas.md).\n" in notes
        assert notes.startswith(before.partition("<!--")[0])
        assert notes.count("## 9.8.7") == 1
        assert [path.name for path in (checkout / "changes").iterdir()] == ["README.md"]
        assert '__version__ = "9.8.7"' in (checkout / "kbroker" / "__init__.py").read_text()


def test_the_newest_release_is_first(checkout: Path) -> None:
    assert prepare(checkout, "9.8.7").returncode == 0
    (checkout / "changes" / "more.md").write_text("More.\n")
    assert prepare(checkout, "9.9.0", "2030-02-01").returncode == 0
    assert re.findall(r"^## (.*)$", (checkout / "CHANGELOG.md").read_text(), re.MULTILINE)[:2] == [
        "9.9.0 (2030-02-01)",
        "9.8.7 (2030-01-31)",
    ]


def test_a_candidate_becomes_a_release_without_new_changes(checkout: Path) -> None:
    for version in ("9.8.7rc1", "9.8.7"):
        done = prepare(checkout, version)
        assert done.returncode == 0, done.stderr
    notes = (checkout / "CHANGELOG.md").read_text()
    assert "\n## 9.8.7 (2030-01-31)\n\nThe same as 9.8.7rc1.\n\n## 9.8.7rc1 (2030-01-31)\n" in notes
    assert '__version__ = "9.8.7"' in (checkout / "kbroker" / "__init__.py").read_text()


@pytest.mark.parametrize(("version", "reason"), [("1.2", "is not a version"), ("0.0.1", f"older than {__version__}")])
def test_a_wrong_version_changes_nothing(checkout: Path, version: str, reason: str) -> None:
    before = (checkout / "CHANGELOG.md").read_text()
    refused = prepare(checkout, version)
    assert refused.returncode == 1
    assert reason in refused.stderr
    assert len(list((checkout / "changes").iterdir())) == 3
    assert (checkout / "CHANGELOG.md").read_text() == before


def test_nothing_to_release_is_an_error(checkout: Path) -> None:
    for name in ("fetch.md", "slow-links.md"):
        (checkout / "changes" / name).unlink()
    assert "nothing to release" in prepare(checkout, "9.8.7").stderr
    assert __version__ in (checkout / "kbroker" / "__init__.py").read_text()
