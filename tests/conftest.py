"""Summary of a test run."""

import pytest

from tests.style.test_fault_rows import named_in_tests, rows


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how many of the fault rows have tests."""
    wanted, named = rows(), named_in_tests()
    terminalreporter.write_line(f"fault rows covered: {sum(row in named for row in wanted)} of {len(wanted)}")
