"""Setup of every test run."""

import os
import pathlib
import signal

import pytest

_TESTS = pathlib.Path(__file__).parent / "tests"
_LONG = pytest.mark.skip(reason="takes seconds of CPU time: CI runs it, and KBROKER_LONG=1 does")


def pytest_configure() -> None:
    """Enable Ctrl-C: a parent that runs tests in the background may ignore SIGINT, and child processes inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `long` outside CI, so that `make test` of a newcomer takes minutes.

    KBROKER_LONG decides if it is set: CI does not run these tests in its compiled copy. A part of compat runs only
    there, so compat has none.
    """
    wanted = os.environ.get("KBROKER_LONG") or os.environ.get("CI", "")
    for item in items:
        if item.get_closest_marker("long") is not None:
            if _TESTS not in item.path.parents:
                raise pytest.UsageError(f"{item.nodeid}: only tests/ may have tests marked `long`")
            if wanted.lower() not in {"1", "true", "yes"}:
                item.add_marker(_LONG)
