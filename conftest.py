"""Setup of every test run."""

import signal


def pytest_configure() -> None:
    """Enable Ctrl-C: a parent that runs tests in the background may ignore SIGINT, and child processes inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
