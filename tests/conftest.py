"""What every run begins with, and says at its end."""

import signal

import pytest

from tests.style.test_fault_rows import named_in_tests, rows


def pytest_configure() -> None:
    """Who started this in the background may have Ctrl-C ignored, for what tests start as well; they interrupt it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many of the faults that must be survived have tests."""
    wanted, named = rows(), named_in_tests()
    terminalreporter.write_line(f"fault rows covered: {sum(row in named for row in wanted)} of {len(wanted)}")
