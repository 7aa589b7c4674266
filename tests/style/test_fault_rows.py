"""Every fault that this version must survive has a test that names its id (docs/faults.md describes the faults)."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def rows() -> list[str]:
    """The ids in docs/faults.md, in order."""
    return re.findall(r"^\| ([A-Z]\d+) \|", (ROOT / "docs" / "faults.md").read_text(), re.MULTILINE)


def named_in_tests() -> dict[str, set[str]]:
    """The ids in test names (test_d1_...) and docstrings, with their files."""
    found: dict[str, set[str]] = {}
    for path in [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "compat").rglob("test_*.py")]:
        if path == Path(__file__):
            continue
        for name, text in re.findall(
            r"def (test_\w+)\(.*?\) -> None:\n(?:\s+\"\"\"(.*?)\"\"\")?", path.read_text(), re.DOTALL
        ):
            ids = {word.upper() for word in re.findall(r"(?<![a-z0-9])[a-z]\d+(?![a-z0-9])", name.replace("_", " "))}
            for row in ids | set(re.findall(r"\b[A-Z]\d+\b", text)):
                found.setdefault(row, set()).add(str(path.relative_to(ROOT)))
    return found


def test_every_row_has_a_test_that_names_it() -> None:
    wanted, named = rows(), named_in_tests()
    missing = [row for row in wanted if row not in named]
    assert wanted
    assert not missing
