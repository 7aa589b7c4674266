"""Commands from a test to a broker that it has started, outside of Kafka's protocol: rules, the clock, what it
holds.

The commands are values, so that they can travel to a broker in another process:

    {"add": {"api": "Fetch", "action": "fail", ...}}    -> {"rule": 1} or {"refused": "why"}
    {"hits": 1}                                         -> {"hits": 3}
    {"remove": 1} or {"clear": true}                    -> {}
    {"rtt_ms": 100} or {"is_down": true}                -> {}
    {"advance_ms": 3600000}                             -> {}
    {"contents": true}                                  -> {"topics": ["orders"], "groups": ["billing"]}
    {"empty": {"topics": [...], "groups": [...]}}       -> {"failed": ["topic orders: why"]}
    {"track": true}, then {"requests": "tracked"}       -> {"requests": [["Fetch", 12, "app", 1764340000123, "ok"]]}
    {"requests": "recent"}                              -> the same for the last ones

`empty` names what remains, and also clears the rules. `contents` answers `failed` too if the broker cannot be asked; a
test begins with it, so the recent requests are those since then.

A command to another process has a number, and so has its answer, so that the answer to a command that was given up is
not taken for that of a later one.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, TypedDict, Unpack

from wire.codec import encode
from wire.codegen import NotInVersion
from wire.errors import ErrorCode
from wire.schema import Message

FAIL: Final = "fail"
DELAY: Final = "delay"
DROP_REPLY: Final = "drop_reply"
CLOSE_CONNECTION: Final = "close_connection"
RESPOND: Final = "respond"
CHANGE_RESPONSE: Final = "change_response"
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


class Which(TypedDict, total=False):
    """The requests to which a rule applies; see `Faults`."""

    times: int | None
    client_id: str | None
    skip: int


class Faults:
    """Rules that make brokers answer wrongly. Each broker of a cluster has its own rule and counts for itself.

    `api` is Kafka's name of the request, such as Produce; `times` None means all requests; with `client_id` only those
    of that client; `skip` is how many requests pass before the first one that a rule applies to. Errors: ValueError for
    an unknown name.
    """

    def __init__(self, nodes: Sequence[Controlled], wait: Wait) -> None:
        self._nodes = nodes
        self._wait = wait

    def fail(self, api: str, error: str, **which: Unpack[Which]) -> AddedRule:
        """Answer the next requests with an error, by its name in Kafka, without doing what they ask."""
        return self._add(api, FAIL, which, code=code_of_name(error))

    def push_request_errors(self, api: str, *errors: str, client_id: str | None = None) -> list[AddedRule]:
        """Answer the next requests with these errors, one each; "NONE" lets a request through."""
        codes = [code_of_name(error) for error in errors]
        return [self._add(api, FAIL if code else DELAY, {"client_id": client_id}, code=code) for code in codes]

    def respond(self, response: object, **which: Unpack[Which]) -> AddedRule:
        """Answer the next requests of its API with this message of `wire.messages`, without doing what they ask.

        Errors  ValueError also if no version of the API can express it
        """
        api = type(response).__name__.removesuffix("Response")
        return self._add(api, RESPOND, which, response=_packed(response))

    def change_response(self, api: str, changes: Mapping[str, object], **which: Unpack[Which]) -> AddedRule:
        """Do what the next requests ask, but change fields of the answers. Answers without such a field do not count.

        Shape  changes has the value of each field by its path: {"topics[name=orders].partitions.leader_id": 2}. Without
               brackets it is the field of each element; an error code may be a name
        """
        return self._add(api, CHANGE_RESPONSE, which, changes=dict(changes))

    def push_leader_response(self, topic: str, partition: int, leader_id: int, leader_epoch: int) -> AddedRule:
        """Name this leader of a partition in the next Metadata response that has the partition, as a stale one does."""
        place = f"topics[name={topic}].partitions[partition_index={partition}]"
        return self.change_response(
            "Metadata", {f"{place}.leader_id": leader_id, f"{place}.leader_epoch": leader_epoch}
        )

    def observe(self, api: str, *, client_id: str | None = None) -> AddedRule:
        """Only count requests; the other rules apply too."""
        return self._add(api, OBSERVE, {"times": None, "client_id": client_id})

    def set_rtt(self, seconds: float) -> None:
        """Handle every request so much later, as over a slow network; 0 ends it."""
        for node in self._nodes:
            node.control({"rtt_ms": round(seconds * 1000)})

    def delay(self, api: str, seconds: float, **which: Unpack[Which]) -> AddedRule:
        """Handle the next requests so much later; the connection's other requests wait behind them."""
        return self._add(api, DELAY, which, delay_ms=round(seconds * 1000))

    def drop_reply(self, api: str, **which: Unpack[Which]) -> AddedRule:
        """Do what the next requests ask, but close the connection instead of answering."""
        return self._add(api, DROP_REPLY, which)

    def close_connection(self, api: str, **which: Unpack[Which]) -> AddedRule:
        """Close the connection of the next requests without doing what they ask."""
        return self._add(api, CLOSE_CONNECTION, which)

    def clear(self) -> None:
        """Remove all rules, and the delay of `set_rtt`; brokers that are down are up again."""
        for node in self._nodes:
            node.control({"clear": True})

    def _add(self, api: str, action: str, which: Which, **values: object) -> AddedRule:
        times, skip = which.get("times", 1), which.get("skip", 0)
        if (times is not None and times < 1) or skip < 0:
            raise ValueError("times must be at least 1, or None for all requests; skip at least 0")
        rule = {"api": api, "action": action, **which, **values}
        answers = [node.control({"add": rule}) for node in self._nodes]
        if refused := next((answer["refused"] for answer in answers if "refused" in answer), None):
            raise ValueError(refused)
        return AddedRule(self._nodes, [answer["rule"] for answer in answers], self._wait)


class Request(NamedTuple):
    """A request that a broker has received.

    Shape  api is Kafka's name, such as Fetch; client_id may be empty; outcome is "ok", names of error codes, "not
           answered" so far, or why it has no reply
    Units  timestamp_ms is the time of the broker's clock
    """

    api: str
    version: int
    client_id: str
    timestamp_ms: int
    outcome: str


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
        return [each for node in self._nodes for each in _requests(node, "tracked")]


def last_requests(node: Controlled) -> str:
    """The last requests that a broker has received during this test, at most 100, one on each line, in local time."""
    from datetime import UTC, datetime  # noqa: PLC0415  (only after a failure)

    def time(each: Request) -> str:
        at = datetime.fromtimestamp(each.timestamp_ms / 1000, UTC).astimezone()
        return at.time().isoformat("milliseconds")

    return "\n".join(
        f"{time(each)} {each.api} {each.version} {each.client_id!r}: {each.outcome}"
        for each in _requests(node, "recent")
    )


def _requests(node: Controlled, which: str) -> list[Request]:
    return [Request(*each) for each in node.control({"requests": which})["requests"]]


def nearest(name: str, known: Sequence[str]) -> str:
    """The end of a complaint about an unknown name."""
    from difflib import get_close_matches  # noqa: PLC0415  (only for a mistake)

    found = get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]}?" if found else ""


def code_of_name(error: str) -> int:
    """The number of an error code. Errors: ValueError."""
    known = ErrorCode.__members__
    if error not in known:
        raise ValueError(f"{error!r} is not an error code of Kafka{nearest(error, list(known))}")
    return int(known[error])


def _packed(response: object) -> list[Any]:
    """A message in JSON: the highest version that can express it, and its bytes in base64. Errors: ValueError."""
    if not isinstance(response, Message) or response.__schema__.kind != "response":
        raise ValueError(f"{type(response).__name__} is not a response of wire.messages")
    versions = response.__schema__.versions
    for version in range(versions.highest, versions.lowest - 1, -1):
        with suppress(NotInVersion):
            return [version, b64encode(encode(response, version)).decode()]
    raise ValueError(f"no version of {type(response).__name__} has all of the fields that are set")
