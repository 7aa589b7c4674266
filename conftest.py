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

    In CI, KBROKER_LONG=0 skips those in tests/: the compiled copy does not repeat them. Some of compat run only there.
    """
    in_ci = _is_set("CI")
    if _is_set("KBROKER_LONG") or (in_ci and not os.environ.get("KBROKER_LONG")):
        return
    for item in items:
        if item.get_closest_marker("long") is not None and (_TESTS in item.path.parents or not in_ci):
            item.add_marker(_LONG)


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() in {"1", "true", "yes"}
