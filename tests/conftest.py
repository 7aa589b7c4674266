"""Setup and summary of every test run."""

import signal

import pytest

from tests.style.test_fault_rows import named_in_tests, rows


def pytest_configure() -> None:
    """Enable Ctrl-C: a parent that runs tests in the background may ignore SIGINT, and child processes inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how many of the fault rows have tests."""
    wanted, named = rows(), named_in_tests()
    terminalreporter.write_line(f"fault rows covered: {sum(row in named for row in wanted)} of {len(wanted)}")
