"""What tests of the command line share: the commands in this process, and a broker for those that need one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from kbroker.cli import main
from tests.broker_process import BrokerProcess

with warnings.catch_warnings():
    # The client reads its schemas by a function that Python 3.11 calls deprecated: that is not our warning.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.admin

assert kafka.admin.KafkaAdminClient


class Done(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("dump-log", "--files", path)`: run a command as the shell would."""

    def run(*words: object) -> Done:
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:  # argparse ends the process for wrong usage
            code = int(end.code or 0)
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one `kbroker serve` for all tests, which tell their topics apart by name; or of another broker.

    KBROKER_BOOTSTRAP_SERVERS=host:port tests the commands against that one.
    """
    if external := os.environ.get("KBROKER_BOOTSTRAP_SERVERS"):
        yield external
        return
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--profile", "test") as started:
        yield f"{started.host}:{started.port}"
