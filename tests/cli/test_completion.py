"""Completion in shells, and the man page: both come from the parsers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.cli._completing import FILES
from tests.cli.conftest import Run

CHECKOUT = Path(__file__).parents[2]
NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("kbroker prod", ["produce"]),
        ("kbroker tier ", ["ls", "cat", "flush", "scrub", "why"]),
        ("kbroker tier f", ["flush"]),
        ("kbroker produce -z ", ["none", "gzip", "snappy", "lz4", "zstd"]),
        ("kbroker produce -z z", ["zstd"]),
        ("kbroker topic --format=j", ["json"]),
        ("kbroker topics --list --form", ["--format"]),
        ("kbroker consume --from", ["--from-beginning"]),
        ("kbroker consume --max", ["--max-messages"]),
        ("kbroker completion ", ["bash", "zsh", "fish"]),
        ("kbroker serve --config ", [FILES]),
        ("kbroker serve --data-dir '/tmp/with blank", [FILES]),
        (f"kbroker consume -b {NOBODY} -t ", []),
        ("kbroker unknown ", []),
        ("kbroker consume -b bad:port:x -g ", []),
    ],
)
def test_words_that_may_follow_are_found(run: Run, line: str, expected: list[str]) -> None:
    done = run("completion", "bash", "--line", line)
    assert (done.code, [each for each in done.lines if each in expected]) == (0, expected)
    assert len(done.lines) == len(expected) or line.endswith("tier ")


def test_topics_and_groups_come_from_the_broker(run: Run, broker: str) -> None:
    run("topic", "-b", broker, "--create", "--topic", "completed-topic")
    reset = [
        "--reset-offsets",
        "--group",
        "completed-group",
        "--topic",
        "completed-topic",
        "--to-earliest",
        "--execute",
    ]
    run("group", "-b", broker, *reset)
    words = f"-b {broker}"
    assert run("completion", "bash", "--line", f"kbroker consume {words} -t compl").lines == ["completed-topic"]
    assert run("completion", "bash", "--line", f"kbroker group {words} --group=compl").lines == ["completed-group"]
    assert run("completion", "fish", "--line", f"kbroker group {words} --group compl").lines == ["completed-group"]
    shown = run("completion", "bash", "--line", f"kbroker topic {words} --topic ").lines
    assert "completed-topic" in shown
    assert not [each for each in shown if each.startswith("__")]


def test_the_name_of_a_group_is_no_command_in_bash(run: Run, broker: str) -> None:
    run("topic", "-b", broker, "--create", "--topic", "quoted-topic")
    name = "quoted;touch $(x) `y` 'z' \"ä\" |& > \\ ~"
    run(
        "group",
        "-b",
        broker,
        "--reset-offsets",
        "--group",
        name,
        "--topic",
        "quoted-topic",
        "--to-earliest",
        "--execute",
    )
    for flag in ("-g quot", "--group=quot"):
        (word,) = run("completion", "bash", "--line", f"kbroker consume -b {broker} {flag}").lines
        done = subprocess.run(
            ["bash", "-c", f"printf %s {word}"], check=True, capture_output=True, text=True, timeout=60
        )
        assert (done.stdout, done.stderr) == (name, "")


def test_zsh_and_fish_show_the_help(run: Run) -> None:
    assert run("completion", "zsh", "--line", "kbroker heal").lines == ["health:check that a broker works"]
    assert run("completion", "fish", "--line", "kbroker heal").lines == ["health\tcheck that a broker works"]


def in_shell(*command: str) -> str:
    """The output of a shell in which `kbroker` is this checkout's command."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": path}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bash_completes(tmp_path: Path) -> None:
    script = """
        source <(kbroker completion bash)
        ask() {
            COMP_LINE="$1"; COMP_POINT=${#1}; read -ra COMP_WORDS <<<"$1"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            compopt() { echo "compopt $*"; }
            _kbroker; echo "${COMPREPLY[*]}"
        }
        ask 'kbroker hea'; ask 'kbroker produce -z lz'; ask 'kbroker produce --file x'; complete -p kbroker
    """
    expected = ["health", "lz4", "compopt -o default", "", "complete -F _kbroker kbroker"]
    assert in_shell("bash", "--norc", "-c", script).splitlines() == expected


def test_fish_completes() -> None:
    script = "kbroker completion fish | source; complete -C 'kbroker hea'; complete -C 'kbroker produce -z lz'"
    assert in_shell("fish", "--no-config", "-c", script).splitlines() == ["health\tcheck that a broker works", "lz4"]


def test_zsh_completes() -> None:
    script = """
        autoload -Uz compinit; compinit -u -D
        source <(kbroker completion zsh)
        _describe() { print -l -- "${(@P)2}" }
        _files() { print files }
        ask() { words=(${=1}); CURRENT=${#words}; _kbroker }
        ask 'kbroker hea'; ask 'kbroker produce -z lz'; ask 'kbroker produce --file x'
    """
    assert in_shell("zsh", "-f", "-c", script).splitlines() == ["health:check that a broker works", "lz4", "files"]


@pytest.mark.parametrize(
    "checker", [["mandoc", "-T", "lint", "-W", "error"], ["man", "--warnings", "-l", "-Tutf8", "-Z"]]
)
def test_the_man_page_is_well_formed(checker: list[str]) -> None:
    if shutil.which(checker[0]) is None:
        pytest.skip(f"{checker[0]} is not installed")
    command = [*checker, str(CHECKOUT / "docs" / "kbroker.1")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
