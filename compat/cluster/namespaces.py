"""Nodes in network namespaces, so that single links between them can be cut. Needs root, `ip` and `iptables`.

Each node has an address on a bridge; clients reach it from outside. A cut drops packets silently at the receiver, as a
broken switch does: connections stay open and time out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

HOST_NUMBER: Final = 254
_BRIDGE: Final = re.compile(r"^\d+: kb(\d+):", re.MULTILINE)
_NAMESPACES: Final = Path("/run/netns")


def is_available() -> bool:
    """Whether this process may make network namespaces."""
    return os.geteuid() == 0 and shutil.which("ip") is not None and shutil.which("iptables") is not None


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def _remove(tag: str) -> None:
    """Remove a network: the bridge of this name, and each namespace with its end of the link."""
    for space in _NAMESPACES.glob(f"{tag}n*"):
        # The kernel deletes a namespace's links only some time after it; the next network needs their names.
        link = f"{tag}v{space.name.removeprefix(f'{tag}n')}"
        subprocess.run(["ip", "link", "del", link], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", space.name], capture_output=True, check=False)
    subprocess.run(["ip", "link", "del", tag], capture_output=True, check=False)


def remove_leftovers() -> None:
    """Remove the networks of processes that were killed: their routes would take the packets of a new network."""
    for process in _BRIDGE.findall(_run("ip", "-o", "link", "show", "type", "bridge")):
        if not Path(f"/proc/{process}").exists():
            _remove(f"kb{process}")


class Network:
    """A bridge and a namespace for each node id. A context manager: everything is removed at the end.

    Its addresses are in a subnet of 10.77.0.0/16 that no other network of this machine uses.
    """

    def __init__(self, *ids: int) -> None:
        self._ids = ids
        self._tag = f"kb{os.getpid()}"
        self._cuts: set[tuple[int, int]] = set()
        remove_leftovers()
        used = _run("ip", "-o", "-4", "addr")
        self._subnet = next(each for each in (f"10.77.{number}" for number in range(256)) if f" {each}." not in used)

    def __enter__(self) -> Self:
        try:
            _run("ip", "link", "add", self._tag, "type", "bridge")
            _run("ip", "addr", "add", f"{self._subnet}.{HOST_NUMBER}/24", "dev", self._tag)
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
            _remove(self._tag)
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        _remove(self._tag)

    def namespace(self, node: int) -> str:
        """The name of a node's namespace."""
        return f"{self._tag}n{node}"

    def _link(self, node: int) -> str:
        """The end of a node's link that is on the bridge."""
        return f"{self._tag}v{node}"

    def address(self, node: int) -> str:
        """The address of a node."""
        return f"{self._subnet}.{node}"

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
