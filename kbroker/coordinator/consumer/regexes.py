"""Regular expressions of subscriptions, in RE2 syntax.

The group stores which topics each expression matches. A thread matches all topics against all expressions of a group:
when an expression is new, when there are new topics, and every `group.consumer.regex.refresh.interval.ms`; at most once
in ten seconds. Matching releases the interpreter's lock. Topics that the member whose heartbeat causes this may not
describe do not match.

The time to match is linear in the topic's name, but proportional to the size of the compiled expression; and compiling
holds the lock. Therefore expressions that are long, deep or repetitive are refused as invalid before they are compiled:
what remains compiles in at most 4 ms (measured with patterns that are made for this), and usually in 0.2 ms. Kafka has
no such limits. It uses RE2/J, whose syntax is the same; it also refuses two groups with one name, and some messages
about invalid expressions differ.

Source: TopicRegexResolver and maybeUpdateRegularExpressions of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, lru_cache, partial
from importlib import import_module
from typing import Any, Final, NamedTuple

from kbroker.coordinator.caller import Caller
from kbroker.coordinator.consumer.group import UNRESOLVED, ConsumerGroup, ResolvedRegex, drop
from kbroker.coordinator.consumer.member import ConsumerMember
from kbroker.coordinator.consumer.records import epoch_record, regex_record
from kbroker.coordinator.consumer.subscribing import metadata_hash, subscriptions_after
from kbroker.coordinator.context import Context, Write
from kbroker.coordinator.timers import nothing
from kbroker.metadata.image import Image
from wire.errors import ErrorCode, KafkaError

SHORTEST_REFRESH_INTERVAL_MS: Final = 10_000
COMPILED_BYTES: Final = 1 << 20
"""The most memory for one compiled expression. RE2 refuses larger ones."""

COMPILED_AT_ONCE: Final = 16
ASKED_AT_ONCE: Final = 200

MOST_CHARACTERS: Final = 1024
MOST_INSTRUCTIONS: Final = 4000
MOST_NESTED_GROUPS: Final = 50
MOST_REPETITIONS: Final = 8  # such as {1,9}
MOST_UNICODE_CLASSES: Final = 4  # such as \p{Greek}; names of topics are ASCII


class Status(Enum):
    """What a heartbeat does to the regular expression of its member."""

    UNCHANGED = 0
    CHANGED = 1
    RESOLVED = 2
    """Changed, and its topics are known."""


@dataclass(slots=True)
class _Found:
    """The result of a thread: the topics of each expression, as of one image.

    unasked  topics whose rights are still to be checked
    hidden   topics that the member may not describe
    """

    topics: dict[str, frozenset[str]]
    version: int
    unasked: list[str]
    hidden: set[str] = field(default_factory=set)


@cache
def _re2() -> Any:
    """The module, loaded when a client first uses a regular expression: it takes a megabyte."""
    return import_module("re2")


class Regex(NamedTuple):
    """A compiled expression. It matches bytes, so a character that is not ASCII counts as several."""

    program: Any

    def fullmatch(self, text: str) -> object | None:
        """Match the whole text; None if it does not match."""
        match: object | None = self.program.fullmatch(text.encode())
        return match


@lru_cache(COMPILED_AT_ONCE)
def compiled(regex: str) -> Regex:
    """Compile an expression that `require_valid` accepts, or get it from the cache. Errors: those of RE2."""
    re2 = _re2()
    options = re2.Options()
    options.max_mem = COMPILED_BYTES
    options.log_errors = False
    options.never_capture = True
    options.encoding = re2.Options.Encoding.LATIN1  # smaller than UTF-8, and names of topics are ASCII
    return Regex(re2.compile(regex.encode(), options))


def _is_too_complex(regex: str) -> bool:
    """Whether compiling or matching could take long; counts characters and does not parse."""
    depth = deepest = 0
    for character in regex if len(regex) <= MOST_CHARACTERS else "":
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    return (
        len(regex) > MOST_CHARACTERS
        or deepest > MOST_NESTED_GROUPS
        or regex.count("{") > MOST_REPETITIONS
        or regex.count("\\p") + regex.count("\\P") > MOST_UNICODE_CLASSES
    )


def require_valid(regex: str, name: str = "SubscribedTopicRegex") -> Regex:
    """The compiled expression. Raises INVALID_REGULAR_EXPRESSION if it does not compile or is too complex."""
    why = "too complex"
    try:
        if not _is_too_complex(regex) and compiled(regex).program.programsize <= MOST_INSTRUCTIONS:
            return compiled(regex)
    except _re2().error as error:
        why = error.args[0].decode(errors="replace").partition(":")[0]
    text = f"{name} `{regex}` is not a valid regular expression: {why}."
    raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, text)


def update(context: Context, group: ConsumerGroup, old: ConsumerMember, new: ConsumerMember, caller: Caller) -> Status:
    """Note that a member has changed its expression, and have the expressions of the group matched if it is time."""
    before, after = old.subscribed_topic_regex or "", new.subscribed_topic_regex or ""
    status, counts = Status.UNCHANGED, group.subscriptions.regexes
    is_new = False
    if before != after or old.subscribed_topic_regex != new.subscribed_topic_regex:
        status = Status.CHANGED
        if before and counts[before] == 1:
            context.records.append(regex_record(group.group_id, before, None))
        if after and not counts[after]:
            require_valid(after)
            is_new = True
        elif (after and after in group.resolved) or (before and not after):
            status = Status.RESOLVED
    if (is_new or counts) and group.group_id not in context.resolving:
        regexes = subscriptions_after(group, old, new).regexes
        if regexes and (is_new or _is_stale(context, group, len(regexes))) and _is_time(context, group):
            _resolve(context, group, tuple(regexes), caller)
    return status


def _is_time(context: Context, group: ConsumerGroup) -> bool:
    last = next(iter(group.resolved.values()), None)
    return last is None or context.timestamp_ms > last.timestamp_ms + SHORTEST_REFRESH_INTERVAL_MS


def _is_stale(context: Context, group: ConsumerGroup, count: int) -> bool:
    last = next(iter(group.resolved.values()), UNRESOLVED)
    if count != len(group.resolved) or last.version < context.new_topics_version:
        return True
    return context.timestamp_ms > last.timestamp_ms + context.settings.group_consumer_regex_refresh_interval_ms


def _resolve(context: Context, group: ConsumerGroup, regexes: tuple[str, ...], caller: Caller) -> None:
    group_id = group.group_id
    context.resolving.add(group_id)
    finish = partial(_ask, context, group_id, context.timestamp_ms, caller)
    context.jobs.append((partial(_match, regexes, context.image), finish))
    context.writes.append(Write(nothing, lambda _: context.resolving.discard(group_id)))


def _match(regexes: Iterable[str], image: Image) -> _Found:
    """Match all topics. Runs in a thread."""
    topics = {}
    for regex in regexes:
        try:
            matches = require_valid(regex).program.fullmatch
        except KafkaError:  # Apache Kafka has stored it
            topics[regex] = frozenset[str]()
            continue
        topics[regex] = frozenset(name for name in image.topics_by_name if matches(name.encode()) is not None)
    return _Found(topics, image.offset, list(frozenset().union(*topics.values())))


def _ask(context: Context, group_id: str, started_ms: int, caller: Caller, found: _Found) -> None:
    """Ask which topics the member may describe, some in each decision: not in the thread, because ACLs change on the
    event loop, and not all at once, because each may take ten microseconds.
    """
    if caller.may_describe is not None and found.unasked:
        some = found.unasked[-ASKED_AT_ONCE:]
        del found.unasked[-ASKED_AT_ONCE:]
        found.hidden.update(set(some) - caller.describable(some))
        context.jobs.append((lambda: found, partial(_ask, context, group_id, started_ms, caller)))
    else:
        _finish(context, group_id, started_ms, found)


def _finish(context: Context, group_id: str, started_ms: int, found: _Found) -> None:
    """Store the topics of the expressions; raise the group epoch if they are others than before."""
    context.resolving.discard(group_id)
    group = context.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        return
    subscriptions = group.subscriptions.copy()
    raises_epoch = False
    for regex, matching in found.topics.items():
        if not subscriptions.regexes[regex]:
            continue
        topics = matching - found.hidden
        before = group.resolved.get(regex, UNRESOLVED).topics
        if before != topics:
            raises_epoch = True
            drop(subscriptions.by_regex, before)
            subscriptions.by_regex.update(topics)
        context.records.append(regex_record(group.group_id, regex, ResolvedRegex(topics, found.version, started_ms)))
    new_hash = metadata_hash(subscriptions.topics(), context.image)
    if raises_epoch or new_hash != group.metadata_hash:
        epoch = group.group_epoch + 1
        context.records.append(epoch_record(group.group_id, epoch, new_hash))
        context.counts.consumer_rebalances += 1
        group.refreshed_epoch = epoch
