"""Rules that make a broker answer wrongly: a test adds them, and the broker applies them to the requests that match.

`RuleBook` decides, and `applied` puts it between the dispatcher and the handlers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any, Final

import trio

from kbroker.broker import Broker
from kbroker.handlers import CloseConnection, Context, Handler, Later
from kbroker.metadata.image import Image
from kbroker.node import Node
from kbroker.server.responses import finder
from kbroker.testing.control import (
    CHANGE_RESPONSE,
    DELAY,
    DROP_REPLY,
    FAIL,
    OBSERVE,
    RESPOND,
    Command,
    nearest,
)
from kbroker.testing.emptying import contents, empty
from kbroker.testing.node_clock import NodeClock
from wire.errors import ErrorCode, KafkaError, code_of
from wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from wire.refusals import refused

_CODE: Final = "error_code"
_MOST_TRACKED: Final = 10_000
_MOST_RECENT: Final = 100
_SHOWN_CLIENT_ID: Final = 1_000
_DATA_APIS: Final = ("Produce", "Fetch")  # their handlers say whether a response has errors
_SETTLING_ROUNDS: Final = 3
"""Rounds of the event loop after the clock was set: due timers run, and idle connections are closed."""


@dataclass(slots=True, eq=False)
class Rule:
    """What happens to the next requests of an API.

    Shape   api is Kafka's name, such as Fetch; client_id None matches every client
            changes has values by path, and response what replaces the answer; `perform` makes them what the rule uses
    Units   times is how many requests it applies to, None for all, after those that it skips; hits is how many it has
            applied to
    """

    api: str
    action: str
    times: int | None = 1
    code: int = 0
    delay_ms: int = 0
    client_id: str | None = None
    skip: int = 0
    changes: Any = None
    response: Any = None
    hits: int = 0

    def matches(self, api: str, client_id: str) -> bool:
        """Whether it applies to the next request of this API by this client."""
        return (
            self.api == api and self.client_id in (None, client_id) and (self.times is None or self.hits < self.times)
        )

    def skips(self) -> bool:
        """Whether it lets this request pass, which it counts then."""
        self.skip -= 1
        return self.skip >= 0


class RuleBook:
    """The rules of one broker, oldest first; the first one that matches applies.

    Shape  rules maps a number, by which the test knows the rule, to the rule; apis are the names of what the broker
           serves, with its key; requests are None unless they are tracked; while is_down, requests close their
           connection
    Units  rtt_ms is how much later every request is handled
    """

    def __init__(self) -> None:
        self.rules: dict[int, Rule] = {}
        self.apis: dict[str, int] = {}
        self.rtt_ms = 0
        self.is_down = False
        self.requests: deque[_Received] | None = None
        self.recent: deque[_Received] = deque(maxlen=_MOST_RECENT)
        self._next = 1

    def add(self, rule: Rule) -> int:
        """Add a rule and return its number."""
        number, self._next = self._next, self._next + 1
        self.rules[number] = rule
        return number

    def end(self, *numbers: int) -> None:
        """Let rules apply no more; their hits remain known."""
        for number in numbers:
            if number in self.rules:
                self.rules[number].times = 0

    def clear(self) -> None:
        """Let no rule apply any more, and handle all requests at once."""
        self.end(*self.rules)
        self.rtt_ms = 0
        self.is_down = False

    def find(self, api: str, client_id: str) -> Rule | None:
        """The rule for a request; None if no rule applies. All rules that only observe count it."""
        found = None
        for rule in self.rules.values():
            observes = rule.action == OBSERVE
            if rule.action == CHANGE_RESPONSE or (found is not None and not observes):
                continue
            if rule.matches(api, client_id) and not rule.skips():
                rule.hits += 1
                found = found if observes else rule
        return found

    def change(self, answer: Any, received: _Received, image: Image) -> Any | None:
        """The answer as the first rule changes it, None if none does; rules with nothing to change do not count it."""
        for rule in self.rules.values():
            if rule.action == CHANGE_RESPONSE and rule.matches(received.api, received.client_id):
                from kbroker.testing.response_rules import changed  # noqa: PLC0415  (only for these rules)

                found = changed(answer, rule.changes, received.version, image, skips=rule.skips)
                if found is not None:
                    rule.hits += 1
                    return found
        return None


@dataclass(slots=True, eq=False)
class _Received:
    """See `kbroker.testing.control.Request`."""

    api: str
    version: int
    client_id: str
    timestamp_ms: int
    outcome: str = "not answered"


async def perform(command: Command, book: RuleBook, clock: NodeClock, node: Node) -> dict[str, Any]:
    """Carry out a command of kbroker.testing.control in the process of the broker."""
    if "add" in command:
        return _add(Rule(**command["add"]), book)
    if "hits" in command:
        found = book.rules.get(command["hits"])  # None if the broker was restarted
        return {"hits": 0 if found is None else found.hits}
    if "remove" in command:
        book.end(command["remove"])
    elif "clear" in command:
        book.clear()
    elif "rtt_ms" in command:
        book.rtt_ms = command["rtt_ms"]
    elif "track" in command:
        book.requests = deque(maxlen=_MOST_TRACKED)
    elif "requests" in command:
        wanted = book.recent if command["requests"] == "recent" else book.requests or ()
        return {"requests": [astuple(each) for each in wanted]}
    elif "is_down" in command:
        book.is_down = command["is_down"]
        if book.is_down and node.server is not None:
            for connection in list(node.server.connections):
                connection.finish()
    elif "contents" in command or "empty" in command:
        assert node.broker is not None, "a controller holds no topics"
        try:
            if "contents" in command:
                book.recent.clear()
                return await contents(node.broker)
            book.clear()
            return {"failed": await empty(node.broker, keep=command["empty"])}
        except KafkaError as error:
            return {"failed": [f"{error.code.name}: {error.message}"]}
    else:
        clock.advance(command["advance_ms"])
        for _ in range(_SETTLING_ROUNDS):
            await trio.lowlevel.checkpoint()
    return {}


def _add(rule: Rule, book: RuleBook) -> dict[str, Any]:
    key = book.apis.get(rule.api)
    if key is None:
        return {"refused": f"{rule.api!r} is not an API that the broker serves{nearest(rule.api, list(book.apis))}"}
    if rule.action in (RESPOND, CHANGE_RESPONSE):
        from kbroker.testing.response_rules import parsed, unpacked  # noqa: PLC0415  (only for these rules)

        try:
            if rule.action == RESPOND:
                rule.response = unpacked(key, rule.response)
            else:
                rule.changes = parsed(key, rule.changes)
        except ValueError as error:
            return {"refused": str(error)}
    return {"rule": book.add(rule)}


def applied(book: RuleBook, handlers: Mapping[int, Handler[Any]]) -> dict[int, Handler[Any]]:
    """These handlers behind the rules of a book."""
    book.apis = {each.name: key for key, each in handlers.items()}
    return {key: each._replace(function=partial(_handle, book, each)) for key, each in handlers.items()}


async def _handle(book: RuleBook, handler: Handler[Any], request: Any, broker: Broker, context: Context) -> Any:
    """Handle a request under the rules, and note what becomes of it."""
    client_id = context.client_id[:_SHOWN_CLIENT_ID]
    received = _Received(handler.name, context.api_version, client_id, broker.env.timestamp_ms())
    book.recent.append(received)
    if book.requests is not None:
        book.requests.append(received)

    def noted(answer: Any) -> Any:
        """The answer as rules change it."""
        if answer is None:
            received.outcome = "no reply is wanted"
            return None
        if book.rules and (changed := book.change(answer, received, broker.image)) is not None:
            answer, context.has_errors = changed, True  # or it has none: the dispatcher looks
        has_codes = context.has_errors or handler.name not in _DATA_APIS
        codes = finder(handler.api_key)(answer) if has_codes else ()
        received.outcome = ", ".join(dict.fromkeys(code_of(code).name for code in codes)) or "ok"
        return answer

    async def complete() -> Any:
        with _noting_errors(received):
            return noted(await answer.complete())

    with _noting_errors(received):
        answer = await _ruled(book, handler, request, broker, context)
        return Later(complete) if isinstance(answer, Later) else noted(answer)


@contextmanager
def _noting_errors(received: _Received) -> Iterator[None]:
    """Note why a request gets an error or no reply."""
    try:
        yield
    except KafkaError as error:
        received.outcome = error.code.name
        raise
    except CloseConnection as reason:
        received.outcome = str(reason)
        raise


async def _ruled(book: RuleBook, handler: Handler[Any], request: Any, broker: Broker, context: Context) -> Any:
    if book.is_down:
        raise CloseConnection("the test has set this broker down")
    if book.rtt_ms:
        await trio.sleep(book.rtt_ms / 1000)
    rule = book.find(handler.name, context.client_id) if book.rules else None
    if rule is None:
        return await handler.function(request, broker, context)
    if rule.action == FAIL and isinstance(request, FetchRequest) and request.session_epoch > 0 and not request.topics:
        # The request of a session does not name its partitions. After this error the client's next Fetch names them.
        rule.hits -= 1
        return refused(request, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    if rule.action == DELAY:
        await trio.sleep(rule.delay_ms / 1000)
        return await handler.function(request, broker, context)
    if rule.action == DROP_REPLY:
        answer = await handler.function(request, broker, context)
        if isinstance(answer, Later):
            await answer.complete()
    if rule.action not in (FAIL, RESPOND) or getattr(request, "acks", None) == 0:
        raise CloseConnection(f"a rule of the test: {rule.action}")
    context.has_errors = True
    if rule.action == FAIL:
        return _failed(request, rule.code)
    from kbroker.testing.response_rules import expressible  # noqa: PLC0415  (only for these rules)

    return expressible(rule.response, context.api_version)


def _failed(request: Any, code: int) -> Any:
    """A response with the code in each result, and at the top only if there are no results."""
    if isinstance(request, FetchRequest) and request.topics:
        return _failed_fetch(request, code)
    response = refused(request, code)
    if getattr(response, _CODE, 0) and _has_results(response):
        setattr(response, _CODE, 0)
    return response


def _failed_fetch(request: FetchRequest, code: int) -> FetchResponse:
    """Fetch has two arrays of partitions, so `refused` cannot tell which of them the answer mirrors."""
    failed = [
        FetchableTopicResponse(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[
                PartitionData(
                    partition_index=part.partition,
                    error_code=code,
                    high_watermark=-1,
                    aborted_transactions=None,
                    records=None,
                )
                for part in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return FetchResponse(responses=failed)


def _has_results(struct: Any) -> bool:
    """Whether a struct has an array with an error code at any level."""
    arrays = [value for name in type(struct).__slots__ if isinstance(value := getattr(struct, name), list)]
    return any(
        hasattr(each, _CODE) or _has_results(each) for array in arrays for each in array if hasattr(each, "__slots__")
    )
