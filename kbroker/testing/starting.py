"""Starts real brokers for tests, with real sockets and files: for clients that cannot take part in a simulation.

    with kbroker.testing.broker() as server:
        producer = KafkaProducer(bootstrap_servers=server.bootstrap_servers)

A broker runs in a process of its own, which ends with this one, or in a thread of this process. `async with` works
under trio and asyncio. This module imports little: this process imports the client while the brokers start.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio

    from kbroker.testing.control import Command
    from kbroker.testing.servers import Server

T = TypeVar("T")

LOCALHOST: Final = "127.0.0.1"
START_S: Final = 60
STOP_S: Final = 15


class Running(Protocol):
    """A node that was started.

    Shape  address is host:port, empty until `await_ready` and for a controller; http is the address of its pages, None
           without pages
    """

    address: str
    http: str | None
    log: Path

    @property
    def is_running(self) -> bool: ...

    def await_ready(self) -> None: ...

    def control(self, command: Command) -> dict[str, Any]: ...

    def stop(self) -> None: ...

    def resume(self) -> None:
        """Go on, if the node was paused."""
        return

    def set_down(self) -> None:
        """Close the connections of this broker, and the new ones at their first request, until `set_up` or a clean-up.

        The broker goes on, so it remains the leader of its partitions. Other brokers do not reach it either.
        """
        self.control({"is_down": True})

    def set_up(self) -> None:
        """End `set_down`."""
        self.control({"is_down": False})


class _Starting:
    """A context that starts nodes, as `broker` and `brokers` return it. It may be entered again after it has ended."""

    def __init__(self, start: Callable[[Path], Sequence[Running]], data_dir: Path | None) -> None:
        self._start = start
        self._given = data_dir
        self._begun: tuple[Path, Sequence[Running]] | None = None
        self._server: Server | None = None

    def begin(self) -> None:
        """Start the nodes without waiting for them; entering the context waits. Errors: OSError."""
        directory = Path(tempfile.mkdtemp(prefix="kbroker-")) if self._given is None else self._given
        try:
            self._begun = directory, self._start(directory)
        except BaseException:
            self._clean(directory)
            raise

    def give_up(self) -> None:
        """End what `begin` has started, unless the context was entered."""
        if self._begun is not None:
            (directory, nodes), self._begun = self._begun, None
            for node in nodes:
                node.stop()
            self._clean(directory)

    def __enter__(self) -> Server:
        if self._begun is None:
            self.begin()
        assert self._begun is not None, "`begin` sets it"
        directory, nodes = self._begun
        try:
            from kbroker.testing.servers import Server, prepare  # noqa: PLC0415  (while the nodes start)

            prepare()
            for node in nodes:
                node.await_ready()
        except BaseException:
            self.give_up()
            raise
        self._begun = None
        addresses = ",".join(node.address for node in nodes if node.address)
        self._server = Server(addresses, nodes=nodes, data_dir=directory)
        return self._server

    def __exit__(self, *_: object) -> None:
        server, self._server = self._server, None
        assert server is not None, "the context was entered"
        server.disconnect()
        for node in server.nodes:
            node.stop()
        if server.data_dir is not None:
            self._clean(server.data_dir)

    def _clean(self, directory: Path) -> None:
        if self._given is None:
            shutil.rmtree(directory, ignore_errors=True)

    async def __aenter__(self) -> Server:
        return await _in_thread(self.__enter__, undo=self.__exit__)

    async def __aexit__(self, *_: object) -> None:
        await _in_thread(self.__exit__)


async def _in_thread(function: Callable[[], T], *, undo: Callable[[], None] | None = None) -> T:
    """Run a function in a thread under trio or asyncio, whichever runs. It runs to its end if it is cancelled.

    Under asyncio a cancelled function is undone. Under trio the caller notices the cancellation afterwards, and ends
    what was begun.
    """
    from sniffio import current_async_library  # noqa: PLC0415  (comes with trio; tests without async do not need it)

    if current_async_library() == "trio":
        from trio import CancelScope, to_thread  # noqa: PLC0415

        with CancelScope(shield=True):  # a cancelled test must not leave its broker behind
            return await to_thread.run_sync(function)
    import asyncio  # noqa: PLC0415

    running = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await _ended(running)
        if undo is not None and running.exception() is None:
            await _ended(asyncio.ensure_future(asyncio.to_thread(undo)))
        raise


async def _ended(running: asyncio.Future[Any]) -> None:
    """Wait for its end, however often the caller is cancelled."""
    import asyncio  # noqa: PLC0415

    while not running.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([running])


def broker(
    settings: Mapping[str, object] | None = None,
    *,
    port: int = 0,
    data_dir: Path | None = None,
    in_process: bool = False,
    log_level: str = "info",
) -> _Starting:
    """One broker, by default with the profile `test` in a temporary directory that is removed afterwards.

    `settings` are Kafka's; `port` 0 means any free port. Errors: RuntimeError if it does not start.
    """
    chosen = {name: str(value) for name, value in (settings or {}).items()}
    if in_process:
        from kbroker.testing.node_thread import start_thread  # noqa: PLC0415  (imports the whole broker)

        return _Starting(partial(start_thread, chosen, port=port, log_level=log_level), data_dir)
    from kbroker.testing.node_process import start_process  # noqa: PLC0415

    return _Starting(partial(start_process, chosen, port=port, log_level=log_level), data_dir)


def brokers(
    count: int = 3,
    settings: Mapping[str, object] | None = None,
    *,
    data_dir: Path | None = None,
    log_level: str = "info",
) -> _Starting:
    """A cluster of so many brokers and a controller, each in a process of its own. Errors: as `broker`."""
    from kbroker.testing.node_process import start_cluster  # noqa: PLC0415

    chosen = {name: str(value) for name, value in (settings or {}).items()}
    return _Starting(partial(start_cluster, count, chosen, log_level=log_level), data_dir)
