"""Nodes in network namespaces, so that single links between them can be cut. Needs root, `ip` and `iptables`.

Each node has an address on a bridge; clients reach it from outside. A cut drops packets silently at the receiver, as a
broken switch does: connections stay open and time out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType
from typing import Final, Self

NETWORK: Final = "10.77.0"
HOST_NUMBER: Final = 254


def is_available() -> bool:
    """Whether this process may make network namespaces."""
    return os.geteuid() == 0 and shutil.which("ip") is not None and shutil.which("iptables") is not None


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


class Network:
    """A bridge and a namespace for each node id. A context manager: everything is removed at the end."""

    def __init__(self, *ids: int) -> None:
        self._ids = ids
        self._tag = f"kb{os.getpid() % 100_000}"
        self._cuts: set[tuple[int, int]] = set()

    def __enter__(self) -> Self:
        try:
            _run("ip", "link", "add", self._tag, "type", "bridge")
            _run("ip", "addr", "add", f"{NETWORK}.{HOST_NUMBER}/24", "dev", self._tag)
            _run("ip", "link", "set", self._tag, "up")
            for node in self._ids:
                space, outer = self.namespace(node), self._link(node)
                _run("ip", "netns", "add", space)
                _run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
                _run("ip", "link", "set", outer, "master", self._tag, "up")
                _run("ip", "-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
                _run("ip", "-n", space, "link", "set", "lo", "up")
                _run("ip", "-n", space, "link", "set", "eth0", "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._remove()

    def _remove(self) -> None:
        for node in self._ids:
            # The kernel deletes a namespace's links only some time after it; the next network needs their names.
            subprocess.run(["ip", "link", "del", self._link(node)], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "del", self.namespace(node)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._tag], capture_output=True, check=False)

    def namespace(self, node: int) -> str:
        """The name of a node's namespace."""
        return f"{self._tag}n{node}"

    def _link(self, node: int) -> str:
        """The end of a node's link that is on the bridge."""
        return f"{self._tag}v{node}"

    def address(self, node: int) -> str:
        """The address of a node."""
        return f"{NETWORK}.{node}"

    def command(self, node: int) -> list[str]:
        """The words that run a command in a node's namespace."""
        return ["ip", "netns", "exec", self.namespace(node)]

    def cut(self, sender: int, receiver: int, *, one_way: bool = False) -> None:
        """Drop what `sender` sends to `receiver`, and the other way round unless `one_way`."""
        for source, target in ((sender, receiver), (receiver, sender))[: 1 if one_way else 2]:
            if (source, target) not in self._cuts:
                self._cuts.add((source, target))
                self._rule("-A", source, target)

    def heal(self) -> None:
        """Undo all cuts."""
        for source, target in self._cuts:
            self._rule("-D", source, target)
        self._cuts.clear()

    def _rule(self, change: str, source: int, target: int) -> None:
        _run(*self.command(target), "iptables", "-w", change, "INPUT", "-s", self.address(source), "-j", "DROP")
