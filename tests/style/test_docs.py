"""Generated pages match the code, and all pages refer only to existing things."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.cli import _parser

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("changes/*.md"), ROOT / "compat/README.md")
)


@pytest.mark.parametrize(
    ("module", "page"),
    [
        ("requirements.settings_page", "configuration.md"),
        ("requirements.apis_page", "apis.md"),
        ("requirements.metrics_page", "metrics.md"),
        ("requirements.man_page", "kbroker.1"),
    ],
)
def test_a_generated_page_is_up_to_date(module: str, page: str) -> None:
    made = subprocess.run([sys.executable, "-m", module], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert (ROOT / "docs" / page).read_text() == made, "run `make docs`"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_existing_files_and_headings(page: str) -> None:
    path = ROOT / page
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match("https?:", link):
            continue
        name, _, heading = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), link
        assert not heading or heading in headings(target), link


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in found}


def commands(page: str) -> list[list[str]]:
    """The kbroker command lines in a page's examples, as words."""
    examples = re.findall(r"^```\w*\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    lines = "\n".join(examples).replace("\\\n", " ").splitlines()
    parts = [part.strip() for line in lines for part in re.split(r"\||&&?", line.partition(" #")[0])]
    without_files = [re.sub(r"\s[<>]\s*\S+", "", part) for part in parts]
    return [shlex.split(part)[1:] for part in without_files if part.startswith("kbroker ")]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_commands_in_examples_parse(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in commands(page):
        try:
            _parser(words).parse_args(words)
        except SystemExit:
            pytest.fail(f"kbroker {shlex.join(words)}: {capsys.readouterr().err}")


def test_the_examples_are_found() -> None:
    with_commands = {page for page in PAGES if commands(page)}
    assert {"README.md", "docs/cli.md", "docs/spark.md", "docs/tiered-storage.md"} <= with_commands


def test_make_targets_in_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {(page, name) for page in PAGES for name in re.findall(r"`make ([a-z-]+)\b", (ROOT / page).read_text())}
    assert {page for page, _ in used} >= {"README.md", "docs/spark.md"}
    assert {(page, name) for page, name in used if name not in targets} == set()
