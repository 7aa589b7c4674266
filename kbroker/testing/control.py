"""Commands from a test to a broker that it has started, outside of Kafka's protocol: rules and the clock.

The commands are values, so that they can travel to a broker in another process:

    {"add": {"api": "Fetch", "action": "fail", ...}}    -> {"rule": 1}
    {"hits": 1}                                         -> {"hits": 3}
    {"remove": 1} or {"clear": true}                    -> {}
    {"advance_ms": 3600000}                             -> {}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, Protocol

from kbroker.testing.node_clock import NodeClock
from kbroker.testing.rules import CLOSE_CONNECTION, DELAY, DROP_REPLY, FAIL, Rule, RuleBook
from wire.errors import ErrorCode

Command = Mapping[str, Any]
Wait = Callable[[Callable[[], bool], float], bool]
WAIT_S: Final = 30.0


def perform(command: Command, book: RuleBook, clock: NodeClock) -> dict[str, Any]:
    """Carry out a command in the process of the broker."""
    if "add" in command:
        return {"rule": book.add(Rule(**command["add"]))}
    if "hits" in command:
        rule = book.rules.get(command["hits"])  # None if the broker was restarted
        return {"hits": 0 if rule is None else rule.hits}
    if "remove" in command:
        book.end(command["remove"])
    elif "clear" in command:
        book.end(*book.rules)
    else:
        clock.advance(command["advance_ms"])
    return {}


class Controlled(Protocol):
    """A node that takes commands."""

    def control(self, command: Command) -> dict[str, Any]: ...


class Clock:
    """The clocks of brokers that a test has started."""

    def __init__(self, nodes: Sequence[Controlled], disconnect: Callable[[], None]) -> None:
        self._nodes = nodes
        self._disconnect = disconnect

    def advance(self, seconds: float) -> None:
        """Set the clocks of all brokers forward; timers that fall into the skipped time are due at once."""
        if seconds < 0:
            raise ValueError("time does not run backwards")
        self._disconnect()  # the brokers close connections that are idle for ten minutes
        for node in self._nodes:
            node.control({"advance_ms": round(seconds * 1000)})


class AddedRule:
    """A rule that the brokers have."""

    def __init__(self, nodes: Sequence[Controlled], numbers: Sequence[int], wait: Wait) -> None:
        self._rules = list(zip(nodes, numbers, strict=True))
        self._wait = wait

    @property
    def hits(self) -> int:
        """How many requests it has applied to."""
        return sum(node.control({"hits": number})["hits"] for node, number in self._rules)

    def wait(self, hits: int = 1, *, timeout: float = WAIT_S) -> None:
        """Wait until it has applied to so many requests. Errors: TimeoutError."""
        if not self._wait(lambda: self.hits >= hits, timeout):
            raise TimeoutError(f"waited {timeout:g} s for {hits} hits of the rule; it has {self.hits}")

    def remove(self) -> None:
        """Remove it."""
        for node, number in self._rules:
            node.control({"remove": number})


class Faults:
    """Rules that make brokers answer wrongly. Each broker of a cluster has its own rule and counts for itself.

    `api` is Kafka's name of the request, such as Produce; `times` None means all requests; with `client_id` only those
    of that client. Errors: ValueError for an unknown name.
    """

    def __init__(self, nodes: Sequence[Controlled], wait: Wait) -> None:
        self._nodes = nodes
        self._wait = wait

    def fail(self, api: str, error: str, *, times: int | None = 1, client_id: str | None = None) -> AddedRule:
        """Answer the next requests with an error, by its name in Kafka, without doing what they ask."""
        known = ErrorCode.__members__
        if error not in known:
            raise ValueError(f"{error!r} is not an error code of Kafka{_nearest(error, list(known))}")
        return self._add(api, FAIL, times, client_id, code=int(known[error]))

    def delay(self, api: str, seconds: float, *, times: int | None = 1, client_id: str | None = None) -> AddedRule:
        """Handle the next requests so much later; the connection's other requests wait behind them."""
        return self._add(api, DELAY, times, client_id, delay_ms=round(seconds * 1000))

    def drop_reply(self, api: str, *, times: int | None = 1, client_id: str | None = None) -> AddedRule:
        """Do what the next requests ask, but close the connection instead of answering."""
        return self._add(api, DROP_REPLY, times, client_id)

    def close_connection(self, api: str, *, times: int | None = 1, client_id: str | None = None) -> AddedRule:
        """Close the connection of the next requests without doing what they ask."""
        return self._add(api, CLOSE_CONNECTION, times, client_id)

    def clear(self) -> None:
        """Remove all rules."""
        for node in self._nodes:
            node.control({"clear": True})

    def _add(self, api: str, action: str, times: int | None, client_id: str | None, **values: int) -> AddedRule:
        names = api_names()
        if api not in names:
            raise ValueError(f"{api!r} is not an API that the broker serves{_nearest(api, names)}")
        if times is not None and times < 1:
            raise ValueError("times must be at least 1, or None for all requests")
        rule = {"api": api, "action": action, "times": times, "client_id": client_id, **values}
        return AddedRule(self._nodes, [node.control({"add": rule})["rule"] for node in self._nodes], self._wait)


def api_names() -> list[str]:
    """The names of the APIs that brokers serve."""
    from kbroker.handlers import discover  # noqa: PLC0415  (imports the broker)

    return [handler.name for handler in discover().values()]


def _nearest(name: str, known: Sequence[str]) -> str:
    found = get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]}?" if found else ""
