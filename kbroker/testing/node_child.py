"""The process of a broker that a test has started: the broker, and the commands of the test on its standard input.

Each command and each answer is a line of JSON (kbroker.testing.control); the first line of the output has the address.
The process ends when its input does, so it ends with the process of the test.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from kbroker.config import ConfigError, Settings
from kbroker.handlers import discover
from kbroker.node import Node, NodeFailed
from kbroker.runtime import event_log
from kbroker.runtime.disk import raise_descriptor_limit
from kbroker.runtime.memory import keep_freed_memory, spare_lasting_objects
from kbroker.testing.node_clock import ClockedEnv, NodeClock
from kbroker.testing.rules import RuleBook, applied, perform

_CHUNK_BYTES = 1 << 16


def main() -> int:
    """Run the broker of the command line's JSON object; return the exit code. The garbage collector is off."""
    asked = json.loads(sys.argv[1])
    event_log.configure(level=asked["log_level"].upper())
    try:
        settings = load(asked)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    raise_descriptor_limit()
    keep_freed_memory()
    clock, book = NodeClock(), RuleBook()
    env = ClockedEnv(clock)
    spare_lasting_objects(env.now_ns)
    node = Node(env, settings, handlers=applied(book, discover()), pages_on_demand=True)
    # As `kbroker serve`: what is imported and made by now lives as long as the process.
    gc.freeze()
    gc.enable()
    failure = trio.run(_serve, node, book, clock, clock=clock)
    if failure is not None:
        sys.stderr.write(f"{failure}\n")
    return int(failure is not None)


def load(asked: Mapping[str, Any]) -> Settings:
    """The settings of a broker: a file's, or defaults and a profile, and what overrides them. Errors: ConfigError."""
    file = asked.get("file")
    return Settings.load(
        None if file is None else Path(file).read_bytes(),
        file_name=str(file),
        overrides=[f"{name}={value}" for name, value in asked["settings"].items()],
        defaults=asked.get("defaults"),
        profile=asked.get("profile", "embedded"),
    )


async def _serve(node: Node, book: RuleBook, clock: NodeClock) -> NodeFailed | None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_on_signal, node)
        nursery.start_soon(_obey, node, book, clock)
        try:
            await node.run(on_ready=lambda host, port: _say({"address": f"{host}:{port}", "http": node.pages_address}))
        except NodeFailed as failure:
            return failure
        finally:
            nursery.cancel_scope.cancel()
    return None


async def _stop_on_signal(node: Node) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            node.stop()


async def _obey(node: Node, book: RuleBook, clock: NodeClock) -> None:
    """Carry out the commands of the test, and stop the node when there will be no more."""
    received = b""
    async with trio.lowlevel.FdStream(sys.stdin.fileno()) as commands:
        while chunk := await commands.receive_some(_CHUNK_BYTES):
            *lines, received = (received + chunk).split(b"\n")
            for line in lines:
                command = json.loads(line)
                number = command.pop("number")
                _say({**await perform(command, book, clock, node), "number": number})
    node.stop()


def _say(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()
