"""What every run says at its end."""

import pytest

from tests.style.test_fault_rows import named_in_tests, rows


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many of the faults that must be survived have tests."""
    wanted, named = rows(), named_in_tests()
    terminalreporter.write_line(f"fault rows covered: {sum(row in named for row in wanted)} of {len(wanted)}")
