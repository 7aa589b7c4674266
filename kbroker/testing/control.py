"""Commands from a test to a broker that it has started, outside of Kafka's protocol: rules, the clock, what it
holds.

The commands are values, so that they can travel to a broker in another process:

    {"add": {"api": "Fetch", "action": "fail", ...}}    -> {"rule": 1} or {"refused": "why"}
    {"hits": 1}                                         -> {"hits": 3}
    {"remove": 1} or {"clear": true}                    -> {}
    {"rtt_ms": 100}                                     -> {}
    {"advance_ms": 3600000}                             -> {}
    {"contents": true}                                  -> {"topics": ["orders"], "groups": ["billing"]}
    {"empty": {"topics": [...], "groups": [...]}}       -> {"failed": ["topic orders: why"]}
    {"track": true}, then {"requests": true}            -> {"requests": [["Fetch", 12, "client id"], ...]}

`empty` names what remains, and also clears the rules. `contents` answers `failed` too if the broker cannot be asked.

A command to another process has a number, and so has its answer, so that the answer to a command that was given up is
not taken for that of a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from wire.errors import ErrorCode

FAIL: Final = "fail"
DELAY: Final = "delay"
DROP_REPLY: Final = "drop_reply"
CLOSE_CONNECTION: Final = "close_connection"
LET_THROUGH: Final = "let_through"
OBSERVE: Final = "observe"

Command = Mapping[str, Any]
Wait = Callable[[Callable[[], bool], float], bool]
WAIT_S: Final = 30.0


class Controlled(Protocol):
    """A node that takes commands."""

    def control(self, command: Command) -> dict[str, Any]: ...


class Clock:
    """The clocks of brokers that a test has started."""

    def __init__(self, nodes: Sequence[Controlled]) -> None:
        self._nodes = nodes

    def advance(self, seconds: float) -> None:
        """Set the clocks of all brokers forward; timers that fall into the skipped time are due at once.

        Brokers close idle connections then (connections.max.idle.ms).
        """
        if seconds < 0:
            raise ValueError("time does not run backwards")
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
        return self._add(api, FAIL, times, client_id, code=_code(error))

    def push_request_errors(self, api: str, *errors: str, client_id: str | None = None) -> list[AddedRule]:
        """Answer the next requests with these errors, one each; "NONE" lets a request through."""
        codes = [_code(error) for error in errors]
        return [self._add(api, FAIL if code else LET_THROUGH, 1, client_id, code=code) for code in codes]

    def observe(self, api: str, *, client_id: str | None = None) -> AddedRule:
        """Only count requests, beside the other rules."""
        return self._add(api, OBSERVE, None, client_id)

    def set_rtt(self, seconds: float) -> None:
        """Handle every request so much later, as over a slow network; 0 ends it."""
        for node in self._nodes:
            node.control({"rtt_ms": round(seconds * 1000)})

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
        """Remove all rules, and the delay of `set_rtt`."""
        for node in self._nodes:
            node.control({"clear": True})

    def _add(self, api: str, action: str, times: int | None, client_id: str | None, **values: int) -> AddedRule:
        if times is not None and times < 1:
            raise ValueError("times must be at least 1, or None for all requests")
        rule = {"api": api, "action": action, "times": times, "client_id": client_id, **values}
        answers = [node.control({"add": rule}) for node in self._nodes]
        if refused := next((answer["refused"] for answer in answers if "refused" in answer), None):
            raise ValueError(refused)
        return AddedRule(self._nodes, [answer["rule"] for answer in answers], self._wait)


class Request(NamedTuple):
    """A request that a broker has received. Shape: api is Kafka's name, such as Fetch; client_id may be empty."""

    api: str
    version: int
    client_id: str


class Requests:
    """The requests that brokers receive."""

    def __init__(self, nodes: Sequence[Controlled]) -> None:
        self._nodes = nodes

    def start_request_tracking(self) -> None:
        """Forget the requests before, and keep the next ones: the last 10,000 of each broker."""
        for node in self._nodes:
            node.control({"track": True})

    def received(self) -> list[Request]:
        """The requests since `start_request_tracking`, in their order at each broker."""
        return [Request(*each) for node in self._nodes for each in node.control({"requests": True})["requests"]]


def nearest(name: str, known: Sequence[str]) -> str:
    """The end of a complaint about an unknown name."""
    from difflib import get_close_matches  # noqa: PLC0415  (only for a mistake)

    found = get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]}?" if found else ""


def _code(error: str) -> int:
    known = ErrorCode.__members__
    if error not in known:
        raise ValueError(f"{error!r} is not an error code of Kafka{nearest(error, list(known))}")
    return int(known[error])
