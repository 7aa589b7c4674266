"""The pages that are generated from the code say what the code says, and the README names only what exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("module", "page"),
    [
        ("kbroker.config.document", "configuration.md"),
        ("kbroker.server.document", "apis.md"),
        ("kbroker.web.document", "metrics.md"),
    ],
)
def test_a_generated_page_is_up_to_date(module: str, page: str) -> None:
    made = subprocess.run([sys.executable, "-m", module], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert (ROOT / "docs" / page).read_text() == made, "run `make docs`"


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md"])
def test_links_lead_to_files_that_exist(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing


def test_commands_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text()
    stems = {path.stem.replace("_", "-") for path in (ROOT / "kbroker" / "cli").glob("[a-z]*.py")}
    used = set(re.findall(r"^kbroker ([a-z-]+)", text, re.MULTILINE))
    assert used
    assert used <= stems
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)\b", text)) <= targets | {"and"}
