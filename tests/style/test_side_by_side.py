"""`make test` fails if any part of it fails: the exit status of .ci/side-by-side."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / ".ci" / "side-by-side"


def run(*commands: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), *commands],
        capture_output=True, text=True, check=False, timeout=60, env=environment,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        ([0, 0, 0, 0, 0], 0),
        ([0, 0, 0, 0, 3], 3),
        ([0, 5, 0], 0),
        ([5, 5, 5, 5], 5),
        ([5, 1], 1),
    ],
)
def test_it_fails_if_a_command_fails(statuses: list[int], status: int) -> None:
    done = run(*(f"echo said {number}; exit {status}" for number, status in enumerate(statuses)))
    assert done.returncode == status
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("said")) == [
        f"said {number}" for number in range(len(statuses))
    ]


def test_a_command_ended_by_a_signal_has_failed() -> None:
    assert run("true", "kill -9 $$").returncode == 128 + signal.SIGKILL


def test_a_command_that_cannot_start_has_failed(tmp_path: Path) -> None:
    """Without bash no command runs, so none can have passed."""
    assert run("true", "true", environment={"PATH": str(tmp_path)}).returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_running_commands_and_starts_no_more(number: int) -> None:
    waits = "echo begun; exec sleep 60"
    commands = [waits, waits, waits, "echo never"]
    with subprocess.Popen([sys.executable, str(PROGRAM), *commands], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"  # of the first, whose output is shown live
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait(30) == 128 + number
    assert "never" not in rest


def suite(folder: Path, *tests: str) -> str:
    """A command that runs these tests with pytest in a folder, as the Makefile does."""
    folder.joinpath("test_suite.py").write_text("\n".join(("from pathlib import Path", *tests)))
    return f'cd {folder} && eval "{sys.executable} -m pytest -p no:trio -c /dev/null --rootdir . test_suite.py $ARGS"'


GOOD = "def test_good(): pass"
BAD = "def test_bad(): assert False"
UNSTABLE = """
def test_unstable():
    seen = Path("seen")
    passes = seen.exists()
    seen.touch()
    assert passes
"""


@pytest.mark.long
def test_a_test_that_passes_alone_is_reported_as_unstable(tmp_path: Path) -> None:
    done = run(suite(tmp_path, GOOD, UNSTABLE))
    assert done.returncode == 0, done.stdout
    assert "unstable, passed when it ran again alone: test_suite.py::test_unstable" in done.stdout
    assert "1 passed" in done.stdout, "only the failed test ran again"


@pytest.mark.long
def test_a_test_that_fails_twice_has_failed(tmp_path: Path) -> None:
    done = run(suite(tmp_path, GOOD, UNSTABLE, BAD))
    assert done.returncode == 1
    assert done.stdout.count("FAILED test_suite.py::test_bad") == 2
    assert "unstable" not in done.stdout.replace("test_unstable", "")


@pytest.mark.long
def test_many_failed_tests_do_not_run_again(tmp_path: Path) -> None:
    done = run(suite(tmp_path, *(BAD.replace("bad", f"bad_{number}") for number in range(11))))
    assert done.returncode == 1
    assert done.stdout.count("FAILED test_suite.py::test_bad_0") == 1
