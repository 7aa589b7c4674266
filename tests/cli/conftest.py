"""Fixtures of the command line tests: commands run in this process, brokers, and data directories."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kbroker.cli import main
from tests.broker_process import BrokerProcess

with warnings.catch_warnings():
    # The client reads its schemas by a function that Python 3.11 calls deprecated: that is not our warning.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.admin

    from tests.cli.directories import Sound, make_sound, state_of
    from tests.cli.tiered import Served, Site, TieredBroker, make_site

assert kafka.admin.KafkaAdminClient


class Done(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Run = Callable[..., Done]


def run_apart(*words: object) -> Done:
    """Run a command in a process of its own: the client leaves sockets that were refused to the collector."""
    command = [sys.executable, "-m", "kbroker", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return Done(done.returncode, done.stdout, done.stderr)


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
    """The address of one `kbroker serve` for all tests, which use different topics; or of another broker.

    KBROKER_BOOTSTRAP_SERVERS=host:port tests the commands against another broker.
    """
    if external := os.environ.get("KBROKER_BOOTSTRAP_SERVERS"):
        yield external
        return
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--profile", "test") as started:
        yield f"{started.host}:{started.port}"


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    """Sound directories. Tests must not change them."""
    return make_sound(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def stopped(sound: Sound, tmp_path: Path) -> Path:
    """A copy of the directory after a clean shutdown, which tests may damage."""
    return Path(shutil.copytree(sound.stopped, tmp_path / "stopped"))


@pytest.fixture
def killed(sound: Sound, tmp_path: Path) -> Path:
    """A copy of the directory of a killed broker."""
    return Path(shutil.copytree(sound.killed, tmp_path / "killed"))


Verify = Callable[[Path], Done]


@pytest.fixture
def verify(run: Run) -> Verify:
    """Run verify on a directory, and check that it changes nothing."""

    def verify(directory: Path) -> Done:
        before = state_of(directory)
        done = run("verify", "--data-dir", directory)
        assert state_of(directory) == before
        return done

    return verify


@pytest.fixture(scope="session")
def tiered_site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Sound directories of a stopped broker and its tier. Tests must not change them."""
    return make_site(tmp_path_factory.mktemp("tiered"))


@pytest.fixture(scope="session")
def tiered(tiered_site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A broker on a copy of these directories, for tests that do not write to its topics."""
    with TieredBroker(tiered_site.copy(tmp_path_factory.mktemp("running"))) as served:
        yield served


@pytest.fixture
def site(tiered_site: Site, tmp_path: Path) -> Site:
    """A copy of these directories, which tests may damage."""
    return tiered_site.copy(tmp_path)
