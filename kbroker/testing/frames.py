"""Finds the frames of Kafka's protocol in what a simulated connection carries, and matches them with faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbroker.runtime.ports import Buffer
from kbroker.testing.hosts import NODE


@dataclass(slots=True)
class FrameFault:
    """A fault of the next matching requests, as many as `times`.

    Shape  kind is "delay" (by delay_ms, with everything behind it), "repeat" (the request arrives again after delay_ms,
           on another connection, whose answer is ignored) or "drop-reply" (the request is served, and the connection
           ends instead of the reply); api_key -1 matches every request; sender and receiver are hosts, "" any;
           is_from_node: only requests of nodes, or only those of clients; copies is a list that gets each struck
           request and its connection, for `SimulatedNetwork.serve_again`
    """

    kind: str
    api_key: int = -1
    sender: str = ""
    receiver: str = ""
    delay_ms: float = 0.0
    skip: int = 0
    times: int = 1
    is_from_node: bool | None = None
    copies: list[tuple[Any, bytes]] | None = None

    def matches(self, api_key: int, sender: str, receiver: str) -> bool:
        """Whether this request is one that it strikes."""
        return (
            self.api_key in (-1, api_key)
            and self.sender in ("", sender)
            and self.receiver in ("", receiver)
            and self.is_from_node in (None, sender.startswith(NODE))
        )


class Frames:
    """Finds the frames in what one side of a connection sends."""

    __slots__ = ("_head", "_head_size", "_left", "frame")

    def __init__(self, head_size: int) -> None:
        self._head = bytearray()
        self._head_size = head_size
        self._left = 0
        self.frame: bytearray | None = None
        """The bytes of the frame that `collect` asked for."""

    def feed(self, data: Buffer, on_head: Callable[[bytes], object]) -> bytearray | None:
        """Call on_head with the head of each frame that begins here; return a collected frame once it is whole."""
        view, position, whole = memoryview(data), 0, None
        while position < len(view):
            if self._left:
                taken = min(self._left, len(view) - position)
                if self.frame is not None:
                    self.frame += view[position : position + taken]
                self._left -= taken
                position += taken
            else:
                taken = min(self._head_size - len(self._head), len(view) - position)
                self._head += view[position : position + taken]
                position += taken
                if len(self._head) < self._head_size:
                    break
                head = bytes(self._head)
                self._head.clear()
                self._left = max(0, int.from_bytes(head[:4], "big") + 4 - self._head_size)
                on_head(head)
            if not self._left and self.frame is not None:
                whole, self.frame = self.frame, None
        return whole

    def collect(self, head: bytes) -> None:
        """Keep the bytes of the frame with this head."""
        self.frame = bytearray(head)
