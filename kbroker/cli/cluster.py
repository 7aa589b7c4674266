"""`kbroker cluster`: run a development cluster on this machine, or show the state of any cluster.

One process runs the controller and one runs each broker, so that all cores are used. Each node has a properties file in
the data directory; `kbroker serve --config FILE` starts a single node again, for example after its process was killed.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final

from kbroker.cli import CommandFailed, Commands, add_format_flag
from kbroker.cli._admin import DEFAULT_BOOTSTRAP_SERVER, add_connection_flags
from kbroker.cli._say import say
from kbroker.runtime.free_ports import free_ports

if TYPE_CHECKING:
    from types import FrameType

    from kbroker.cli._child import Child

START_MS: Final = 60_000
STOP_SECONDS: Final = 30
LOOK_MS: Final = 10
CONTROLLER_ID: Final = 1000
"""Above the ids of the brokers, which are 1, 2, 3, ..."""
MAX_BROKERS: Final = 100
REPLICAS: Final = 3
LOCALHOST: Final = "127.0.0.1"


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "cluster",
        help="run several brokers on this machine, or show a cluster",
        description="Run a development cluster until Ctrl-C: one controller and several brokers, each in a process of "
        "its own. With --status, show the brokers, leaders and in-sync replicas of a running cluster.",
    )
    parser.add_argument("--brokers", type=_count, metavar="N", help=f"number of brokers (default {REPLICAS})")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="directory of the nodes, required to run them")
    parser.add_argument(
        "--listen", metavar="HOST:PORT",
        help="address of the first broker; the next brokers use the next ports, and the controller the port before it; "
        f"port 0 means any free ports (default {DEFAULT_BOOTSTRAP_SERVER})",
    )  # fmt: skip
    parser.add_argument(
        "--override", action="append", default=[], metavar="KEY=VALUE", help="a setting of all nodes; repeatable"
    )
    parser.add_argument("--cluster-id", metavar="ID", help="id of a new cluster (default: random)")
    parser.add_argument("--status", action="store_true", help="show a running cluster instead")
    add_connection_flags(parser)
    add_format_flag(parser)
    parser.set_defaults(run=cluster)


def _count(text: str) -> int:
    count = int(text)
    if not 1 <= count <= MAX_BROKERS:
        raise argparse.ArgumentTypeError(f"must be between 1 and {MAX_BROKERS}")
    return count


def cluster(options: argparse.Namespace) -> int:
    """Run or show a cluster; return the exit code."""
    if options.status:
        from kbroker.cli._cluster_status import show  # noqa: PLC0415  (--help must not import the client)

        return show(options)
    if options.data_dir is None:
        raise CommandFailed("--data-dir is required to run a cluster")
    if options.bootstrap_servers or options.command_config:
        raise CommandFailed("--bootstrap-server and --command-config are only for --status")
    with _stop_signals() as stopping:
        return _run(options, stopping)


@contextmanager
def _stop_signals() -> Iterator[Event]:
    """An event that SIGINT and SIGTERM set."""
    stopping = Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt  # the second signal: kill everything
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(options: argparse.Namespace, stopping: Event) -> int:
    from kbroker.cli._child import Child  # noqa: PLC0415  (--help must not import this)
    from kbroker.runtime.disk import keep_memory_and_files_private  # noqa: PLC0415

    keep_memory_and_files_private()  # the settings may hold secrets
    count = options.brokers or REPLICAS
    directory: Path = options.data_dir.absolute()
    host, ports = _addresses(options.listen or DEFAULT_BOOTSTRAP_SERVER, count)
    nodes: list[Child] = []
    try:
        try:
            for name, settings in node_settings(directory, count, host=host, ports=ports).items():
                path = directory / name
                path.mkdir(parents=True, exist_ok=True)
                file = directory / f"{name}.properties"
                chosen = [override.partition("=")[::2] for override in options.override]
                lines = [f"{key}={value}\n" for key, value in {**settings, **dict(chosen)}.items()]
                file.write_text("".join(lines))
                arguments = ["--config", str(file)]
                if options.cluster_id and name == "controller":
                    arguments += ["--cluster-id", options.cluster_id]
                nodes.append(Child(name, arguments, ready=path / "ready", log=directory / f"{name}.log"))
        except OSError as error:
            raise CommandFailed(f"cannot write {error.filename}: {error.strerror}") from error
        controller, brokers = nodes[0], nodes[1:]
        addresses = _await_ready(controller, brokers, stopping)
        if not stopping.is_set():
            say(f"kbroker cluster ready on {','.join(addresses)}")
            say(f"Logs and properties files are in {directory}. Ctrl-C stops the cluster.")
            sys.stdout.flush()  # the output may be a pipe that another program waits on
        _watch(nodes, stopping)
        for child in brokers:
            child.terminate()
        for child in brokers:
            child.wait(STOP_SECONDS)  # a broker needs the controller to stop in order
        controller.terminate()
        controller.wait(STOP_SECONDS)
    finally:
        for child in nodes:
            if child.exit_code is None:
                child.kill()
    return 0


def _await_ready(controller: Child, brokers: Sequence[Child], stopping: Event) -> list[str]:
    """Wait until all brokers serve clients; returns their addresses. Raises CommandFailed."""
    from kbroker.runtime.env import RealEnv  # noqa: PLC0415  (--help must not import this)

    env = RealEnv()
    deadline_ms = env.now_ms() + START_MS
    while not stopping.is_set():
        addresses = [child.address() for child in brokers]
        if None not in addresses:
            return [str(address) for address in addresses]
        for child in (controller, *brokers):
            if child.exit_code is not None:
                raise CommandFailed(f"{child.name} did not start: {child.last_words()}")
        if env.now_ms() > deadline_ms:
            late = [child.name for child in brokers if child.address() is None]
            raise CommandFailed(f"{', '.join(late)} not ready after {START_MS // 1000} s; see {controller.log.parent}")
        stopping.wait(LOOK_MS / 1000)
    return []


def _watch(nodes: Sequence[Child], stopping: Event) -> None:
    """Report nodes that end, until the cluster is to stop or no node is left. Raises CommandFailed for the latter."""
    running = list(nodes)
    while not stopping.wait(LOOK_MS * 10 / 1000):
        for child in [child for child in running if child.exit_code is not None]:
            running.remove(child)
            again = f"kbroker serve --config {child.log.with_suffix('.properties')}"
            say(f"{child.name} ended with {child.exit_code}: {child.last_words()}; `{again}` starts it again")
            sys.stdout.flush()
        if not running:
            raise CommandFailed("no node is left")


def node_settings(directory: Path, count: int, *, host: str, ports: Sequence[int]) -> dict[str, dict[str, str]]:
    """The settings of each node by its name, the controller first.

    `ports` has the controller's port, then those of the brokers.
    """
    common = {
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": f"{LOCALHOST}:{ports[0]}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    }
    replicas = min(count, REPLICAS)
    replication = {
        "default.replication.factor": str(replicas),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "min.insync.replicas": str(max(1, replicas - 1)),
    }
    nodes = {
        "controller": {
            "process.roles": "controller",
            "node.id": str(CONTROLLER_ID),
            "listeners": f"CONTROLLER://{LOCALHOST}:{ports[0]}",
            **common,
            **replication,
            "log.dirs": str(directory / "controller" / "data"),
        }
    }
    for number in range(1, count + 1):
        name = f"broker-{number}"
        nodes[name] = {
            "process.roles": "broker",
            "node.id": str(number),
            "listeners": f"PLAINTEXT://{host}:{ports[number]}",
            **common,
            **replication,
            "log.dirs": str(directory / name / "data"),
        }
    return nodes


def _addresses(listen: str, count: int) -> tuple[str, list[int]]:
    """The host of the brokers, and the ports of the controller and the brokers. Raises CommandFailed."""
    host, _, text = listen.rpartition(":")
    if not text.isdecimal() or not 0 <= int(text) <= 0xFFFF - count + 1 or int(text) == 1:
        raise CommandFailed(f"--listen: {listen!r} is not HOST:PORT")
    port = int(text)
    return host, [port - 1, *range(port, port + count)] if port else free_ports(count + 1)
