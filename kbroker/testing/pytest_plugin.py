"""The pytest plug-in: a broker for tests, in one word. docs/pytest.md is the manual.

    def test_orders(kbroker):
        topic = kbroker.topic("orders")
        send_orders(bootstrap_servers=kbroker.bootstrap_servers, topic=topic)
        assert len(kbroker.records(topic)) == 3

Each setting has a flag, a variable of the environment and an ini option; the first of these that is given counts. With
pytest-xdist each worker has a broker of its own. pytest imports this module at every start, so it imports little.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from kbroker.testing.servers import Server
    from kbroker.testing.starting import _Starting

_LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_SERVERS: Final = pytest.StashKey["list[Server]"]()
_BEGUN: Final = pytest.StashKey["_Starting | None"]()
"""The session's broker, if it starts before a test asks for it."""


class _Option:
    """One setting: --kbroker-NAME, KBROKER_NAME, kbroker_NAME."""

    def __init__(self, name: str, text: str, *, is_list: bool = False, is_flag: bool = False) -> None:
        self.name = name
        self.text = text
        self.is_list = is_list
        self.is_flag = is_flag

    def add(self, parser: pytest.Parser) -> None:
        group = parser.getgroup("kbroker", "a Kafka broker for tests")
        flag = f"--kbroker-{self.name.replace('_', '-')}"
        if self.is_flag:
            group.addoption(flag, action="store_true", default=None, dest=f"kbroker_{self.name}", help=self.text)
        else:
            action = "append" if self.is_list else "store"
            group.addoption(flag, action=action, default=None, dest=f"kbroker_{self.name}", help=self.text)
        kind = "linelist" if self.is_list else "bool" if self.is_flag else "string"
        parser.addini(f"kbroker_{self.name}", self.text, type=kind, default=None)  # type: ignore[arg-type]

    def of(self, config: pytest.Config) -> Any:
        """Its value: the flag's, else the environment's, else the ini file's; None or empty if none is given."""
        given = config.getoption(f"kbroker_{self.name}")
        if given is not None:
            return given
        text = os.environ.get(f"KBROKER_{self.name.upper()}")
        if not text:
            return config.getini(f"kbroker_{self.name}")
        if self.is_list:
            return text.split(";")
        return text.lower() in ("1", "true", "yes") if self.is_flag else text


SERVERS: Final = _Option("bootstrap_servers", "use this broker, HOST:PORT, instead of starting one")
PORT: Final = _Option("port", "port of the broker (default: any free one; xdist workers use the next ones)")
SETTING: Final = _Option("setting", "a setting of the broker, KEY=VALUE; repeatable", is_list=True)
IN_PROCESS: Final = _Option("in_process", "run the broker in a thread of pytest's process", is_flag=True)
LOG_LEVEL: Final = _Option("log_level", "level of the broker's log: debug, info, warning or error (default info)")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare flags and ini options."""
    for option in (SERVERS, PORT, SETTING, IN_PROCESS, LOG_LEVEL):
        option.add(parser)


def _settings(config: pytest.Config) -> dict[str, str]:
    found = {}
    for word in SETTING.of(config) or []:
        name, equals, value = word.partition("=")
        if not equals:
            raise pytest.UsageError(f"kbroker: {word!r} is not KEY=VALUE")
        found[name.strip()] = value.strip()
    return found


def _port(config: pytest.Config) -> int:
    text = str(PORT.of(config) or 0)
    if not text.isdecimal() or int(text) > 0xFFFF:
        raise pytest.UsageError(f"kbroker: the port {text!r} is not a number up to 65535")
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    return int(text) + (int(worker) if int(text) and worker.isdecimal() else 0)


def _log_level(config: pytest.Config) -> str:
    level = str(LOG_LEVEL.of(config) or "info").lower()
    if level not in _LOG_LEVELS:
        raise pytest.UsageError(f"kbroker: the log level {level!r} is not one of {', '.join(_LOG_LEVELS)}")
    return level


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the session's broker if tests will use it; it starts while tests before them run.

    A worker of pytest-xdist does not know which of the tests are its own, so it waits for the first one.
    """
    config = session.config
    factory: pytest.TempPathFactory | None = getattr(config, "_tmp_path_factory", None)  # as the fixture has it
    if factory is None or session.testsfailed or config.option.collectonly or config.option.setupplan:
        return
    if SERVERS.of(config) or IN_PROCESS.of(config) or "PYTEST_XDIST_WORKER" in os.environ:
        return
    if not any(map(_will_use_broker, session.items)):
        return
    with suppress(pytest.UsageError, OSError):  # the fixture meets and reports the same
        starting = _session_broker(config, factory)
        config.add_cleanup(starting.give_up)
        starting.begin()
        config.stash[_BEGUN] = starting


def _will_use_broker(item: pytest.Item) -> bool:
    """Whether a test uses the fixture below, not one of the same name in its project, and will hardly be skipped."""
    known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    is_skipped = any(mark.name in ("skip", "skipif") for mark in item.iter_markers())
    return len(known.get("kbroker_server", ())) == 1 and not is_skipped


def _session_broker(config: pytest.Config, factory: pytest.TempPathFactory) -> _Starting:
    from kbroker.testing.starting import broker  # noqa: PLC0415  (only if a test needs it)

    return broker(
        _settings(config),
        port=_port(config),
        in_process=bool(IN_PROCESS.of(config)),
        log_level=_log_level(config),
        data_dir=factory.mktemp("kbroker"),
    )


class Kbroker:
    """A test's view of the broker: everything of `Server`, and topics of its own."""

    def __init__(self, server: Server) -> None:
        self.server = server
        from kbroker.runtime.clocks import RealClocks  # noqa: PLC0415  (only if a test needs it)

        self.prefix = f"test-{RealClocks().new_uuid().hex[:8]}-"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server, name)

    def topic(self, name: str = "topic", *, partitions: int = 1, config: Mapping[str, object] | None = None) -> str:
        """Create a topic whose name only this test knows; return its name."""
        return self.server.create_topic(self.prefix + name, partitions=partitions, config=config)


@pytest.fixture(scope="session")
def kbroker_server(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Server]:
    """A broker for the whole session."""
    if servers := SERVERS.of(pytestconfig):
        from kbroker.testing.servers import Server  # noqa: PLC0415  (only if a test needs it)

        server = Server(servers)
        yield _noted(request, server)
        server.disconnect()
        return
    starting = pytestconfig.stash.get(_BEGUN, None) or _session_broker(pytestconfig, tmp_path_factory)
    pytestconfig.stash[_BEGUN] = None
    with starting as server:
        yield _noted(request, server)


@pytest.fixture
def kbroker(kbroker_server: Server) -> Iterator[Kbroker]:
    """The session's broker, for one test: topics and groups that appear during the test are deleted after it."""
    view, clients = Kbroker(kbroker_server), kbroker_server.opened_clients()
    if not kbroker_server.nodes:  # other programs may use it
        yield view
        kbroker_server.close_clients(keep=clients)
        kbroker_server.delete_topics([name for name in kbroker_server.topics() if name.startswith(view.prefix)])
        return
    before = kbroker_server.contents()
    yield view
    kbroker_server.empty(keep=before, keep_clients=clients)


@pytest.fixture(scope="session")
def kbroker_tiered(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Server]:
    """A broker for the session that copies closed segments of tiered topics to a directory within milliseconds."""
    from kbroker.testing.starting import broker  # noqa: PLC0415

    quick = {
        "remote.log.manager.task.interval.ms": "100",
        "log.retention.check.interval.ms": "200",
        "log.initial.task.delay.ms": "0",
    }
    directory, chosen = tmp_path_factory.mktemp("kbroker-tiered"), {**quick, **_settings(pytestconfig)}
    in_process = bool(IN_PROCESS.of(pytestconfig))
    with broker(chosen, data_dir=directory, in_process=in_process, log_level=_log_level(pytestconfig)) as server:
        yield _noted(request, server)


@pytest.fixture
def kbroker_cluster(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Server]]:
    """A function that starts a cluster: `kbroker_cluster(3)`. It ends with the test."""
    from kbroker.testing.starting import brokers  # noqa: PLC0415

    with ExitStack() as running:

        def start(count: int = 3, settings: Mapping[str, object] | None = None) -> Server:
            directory = tmp_path_factory.mktemp("kbroker-cluster")
            chosen = {**_settings(pytestconfig), **(settings or {})}
            starting = brokers(count, chosen, data_dir=directory, log_level=_log_level(pytestconfig))
            return _noted(request, running.enter_context(starting))

        yield start


def _noted(request: pytest.FixtureRequest, server: Server) -> Server:
    """Remember a server for the report of a failure: session-wide ones at the session."""
    request.node.stash.setdefault(_SERVERS, []).append(server)
    return server


def _sections(server: Server) -> Iterator[tuple[str, Callable[[], str]]]:
    """What the report of a failed test shows of a server: its log, each node's state and what clients have asked."""
    from kbroker.testing.control import last_requests  # noqa: PLC0415  (only after a failure)

    yield "kbroker log", server.log_tail
    for number, node in enumerate(server.nodes):
        name = "" if len(server.nodes) == 1 else f" of node {number}"
        yield f"kbroker state{name}", partial(server.state, node)
        if node.address:
            yield f"kbroker requests{name}", partial(last_requests, node)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Attach the broker's log and state to the report of a failed test that uses one."""
    outcome = yield
    report = outcome.get_result()
    if not report.failed or not any(name.startswith("kbroker") for name in getattr(item, "fixturenames", ())):
        return
    for node in (item.session, item):
        for server in node.stash.get(_SERVERS, []):
            for title, read in _sections(server):
                try:
                    text = read()
                except (OSError, HTTPException, RuntimeError) as error:
                    text = f"not available: {error}"
                if text:
                    report.sections.append((title, text))
            if server.data_dir is not None:
                report.sections.append(("kbroker data directory", str(server.data_dir)))
