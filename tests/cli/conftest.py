"""What tests of the command line share: the commands in this process, and a broker for those that need one."""

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
    """How a command ended, and what it said."""

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
    """The address of one `kbroker serve` for all tests, which tell their topics apart by name; or of another broker.

    KBROKER_BOOTSTRAP_SERVERS=host:port tests the commands against that one.
    """
    if external := os.environ.get("KBROKER_BOOTSTRAP_SERVERS"):
        yield external
        return
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--profile", "test") as started:
        yield f"{started.host}:{started.port}"


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    """Directories that are in order; not to be touched."""
    return make_sound(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def stopped(sound: Sound, tmp_path: Path) -> Path:
    """A copy of the one that a broker left which stopped properly, to be damaged."""
    return Path(shutil.copytree(sound.stopped, tmp_path / "stopped"))


@pytest.fixture
def killed(sound: Sound, tmp_path: Path) -> Path:
    """A copy of the one that a broker left which was killed."""
    return Path(shutil.copytree(sound.killed, tmp_path / "killed"))


Verify = Callable[[Path], Done]


@pytest.fixture
def verify(run: Run) -> Verify:
    """Check a directory, and that the check changed nothing."""

    def verify(directory: Path) -> Done:
        before = state_of(directory)
        done = run("verify", "--data-dir", directory)
        assert state_of(directory) == before
        return done

    return verify


@pytest.fixture(scope="session")
def tiered_site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Directories of a stopped broker and of its tier that are in order; not to be touched."""
    return make_site(tmp_path_factory.mktemp("tiered"))


@pytest.fixture(scope="session")
def tiered(tiered_site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A broker that runs on a copy of them, for tests that add nothing to these topics."""
    with TieredBroker(tiered_site.copy(tmp_path_factory.mktemp("running"))) as served:
        yield served


@pytest.fixture
def site(tiered_site: Site, tmp_path: Path) -> Site:
    """A copy of them, to be damaged."""
    return tiered_site.copy(tmp_path)
