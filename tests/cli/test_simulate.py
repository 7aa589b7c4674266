"""`kbroker simulate`: the list, and a story as text, JSON and SVG."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kbroker.cli._story_svg import drawn
from kbroker.cli._story_text import Teller
from kbroker.testing.scenarios import Scenario, scenarios
from tests.testing.told import told

NAME = "kip-101-record-lost"
ALL = scenarios()


@cache
def simulate(*words: str, columns: int = 80, code: int = 0) -> str:
    """What the command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "kbroker", "simulate", *words],
        capture_output=True,
        text=True,
        check=False,
        env={"COLUMNS": str(columns), "PYTHONIOENCODING": "utf-8"},
    )
    assert done.returncode == code, done.stderr
    return done.stdout or done.stderr


def test_the_list_has_every_scenario_with_a_sentence() -> None:
    lines = simulate().splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(ALL)
    assert simulate("--list") == simulate()
    found = [json.loads(line) for line in simulate("--format", "json").splitlines()]
    assert [(one["scenario"], one["rules"]) for one in found] == [(name, one.rules) for name, one in ALL.items()]
    assert all(one["summary"].endswith(".") for one in found)


@pytest.mark.long
@pytest.mark.parametrize("scenario", ALL.values(), ids=lambda each: each.name)
@pytest.mark.parametrize("columns", [80, 120])
def test_a_story_fits_the_terminal_and_has_no_colours_in_a_pipe(
    scenario: Scenario, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    teller = Teller()
    for rule in scenario.rules:
        teller.tell(told(scenario.name, rule).lines, is_last=rule == scenario.rules[-1])
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text, "nothing is cut short"
    assert text.splitlines()[0] == scenario.title
    for part in (scenario.opening, scenario.lesson):
        assert text.replace("\n", " ").count(part) == 1


@pytest.mark.long
def test_the_command_tells_a_story() -> None:
    text = simulate(NAME)
    assert text.splitlines()[0] == ALL[NAME].title
    assert "\nold rule" in text
    assert "\nnew rule" in text
    assert "✗ m2 e0" in text
    assert "old rule" not in simulate(NAME, "--rule", "new")


@pytest.mark.long
@pytest.mark.parametrize("scenario", ALL.values(), ids=lambda each: each.name)
def test_a_picture_is_well_formed_and_has_every_record(scenario: Scenario) -> None:
    runs = [told(scenario.name, rule) for rule in scenario.rules]
    root = ElementTree.fromstring(drawn([run.lines for run in runs]))
    width, height = int(root.attrib["width"]), int(root.attrib["height"])
    texts = list(root.iter("{http://www.w3.org/2000/svg}text"))
    shown = [text.text or "" for text in texts]
    for text in texts:
        assert 0 < int(text.attrib["y"]) < height
        assert int(text.attrib["x"]) + 7 * len(text.text or "") < width
    steps = [step for run in runs for step in run.steps]
    for value in {one["value"] for step in steps for replica in step["replicas"] for one in replica["records"]}:
        assert any(value in words for words in shown)


@pytest.mark.long
def test_the_command_draws_into_a_file(tmp_path: Path) -> None:
    assert "is drawn in" in simulate(NAME, "--svg", str(tmp_path / "story.svg"))
    assert ElementTree.parse(tmp_path / "story.svg").getroot().tag.endswith("svg")


@pytest.mark.long
def test_json_has_a_line_for_the_beginning_each_step_and_the_end() -> None:
    lines = [json.loads(line) for line in simulate(NAME, "--rule", "new", "--format", "json").splitlines()]
    assert {line["rule"] for line in lines} == {"new"}
    assert lines[0]["scenario"] == NAME
    assert [line["step"] for line in lines[1:-1]] == [*range(1, len(lines) - 1)]
    assert "lesson" in lines[-1]


@pytest.mark.long
def test_a_story_is_the_same_in_every_run() -> None:
    first = simulate(NAME, "--format", "json")
    simulate.cache_clear()
    assert simulate(NAME, "--format", "json") == first


BUFFERED = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}


@pytest.mark.long
def test_it_is_no_failure_if_the_reader_leaves() -> None:
    piped = f"set -o pipefail; {shlex.quote(sys.executable)} -m kbroker simulate {NAME} | head -2"
    done = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, check=False, env=BUFFERED)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == ALL[NAME].title


@pytest.mark.parametrize("words", [("--list",), ("--help",)])
def test_it_is_no_failure_if_the_reader_leaves_before_the_last_bytes(words: tuple[str, ...]) -> None:
    receiving, sending = os.pipe()
    os.close(receiving)
    command = [sys.executable, "-m", "kbroker", "simulate", *words]
    done = subprocess.run(command, stdout=sending, stderr=subprocess.PIPE, text=True, check=False, env=BUFFERED)
    os.close(sending)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_needs_no_standard_output() -> None:
    command = [f"{shlex.quote(sys.executable)} -m kbroker simulate --list >&-"]
    done = subprocess.run(["bash", "-c", *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_wrong_words_are_usage_errors() -> None:
    assert "choose from kip-101-record-lost" in simulate("kip-102", code=2)
    assert "a list has neither" in simulate("--list", NAME, code=2)
    single = next(name for name, one in ALL.items() if one.old_rule is None)
    assert "has only the rule new" in simulate(single, "--rule", "old", code=2)


@pytest.mark.long
def test_a_run_that_fails_is_reported(tmp_path: Path) -> None:
    assert "No such file" in simulate(NAME, "--svg", str(tmp_path / "none" / "story.svg"), code=1)
