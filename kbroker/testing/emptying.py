"""What a broker holds for its clients, and the end of what a test has left there, in the process of the broker.

The fixture `kbroker` looks before each test and empties the broker after it. In the process of the broker this needs no
connection and none of the requests of clients, and the listeners may ask for logins.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final
from uuid import UUID

import trio

from kbroker.broker import Broker
from kbroker.controller.port import Sender
from kbroker.coordinator.caller import Caller
from kbroker.metadata.names import is_internal
from kbroker.runtime.purgatory import Purgatory
from wire.errors import ErrorCode, KafkaError, code_of
from wire.messages.delete_groups import DeleteGroupsRequest
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from wire.types import ZERO_UUID

CLIENT_ID: Final = "kbroker-testing"
_TIMEOUT_MS: Final = 30_000
_LOADED_S: Final = 10
_LOOK_S: Final = 0.002
_CALLER: Final = Caller(client_id=CLIENT_ID)
_GONE: Final = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND)


async def contents(broker: Broker) -> dict[str, list[str]]:
    """The topics that are not internal, and the groups of any kind. Waits while groups are read from their log.

    Errors  KafkaError (COORDINATOR_LOAD_IN_PROGRESS) if that takes too long
    """
    deadline = trio.current_time() + _LOADED_S
    while True:
        try:
            groups = [group for shard in broker.groups.shards() for group in shard.group_ids()]
            break
        except KafkaError:
            if trio.current_time() >= deadline:
                raise
        await trio.sleep(_LOOK_S)
    return {"topics": [name for name in broker.image.topics_by_name if not is_internal(name)], "groups": groups}


async def empty(broker: Broker, keep: Mapping[str, list[str]]) -> list[str]:
    """Delete topics and groups that are not in `keep`; groups with members remain. Returns what failed, for people.

    Errors  KafkaError if the controller or the groups cannot be asked
    """
    found = await contents(broker)
    old_topics, old_groups = set(keep["topics"]), set(keep["groups"])
    topics = [name for name in found["topics"] if name not in old_topics]
    failed: list[str] = []
    if topics:
        ids = {name: broker.image.topics_by_name[name].id for name in topics}
        # In the form of the newest version, in which a controller in another process gets it.
        named = [DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in topics]
        request = DeleteTopicsRequest(topics=named, timeout_ms=_TIMEOUT_MS)
        answer = await broker.controller.ask(request, DeleteTopicsResponse)
        failed += [
            f"topic {each.name}: {each.error_message or code_of(each.error_code).name}"
            for each in answer.responses
            if each.error_code not in _GONE
        ]
        await _log(broker, request, answer)
        gone = (each.name for each in answer.responses if each.error_code in _GONE)
        await _unknown(broker, [ids[name] for name in gone if name is not None])
    for group in (group for group in found["groups"] if group not in old_groups):
        request_of_group = DeleteGroupsRequest(groups_names=[group])
        deleted: Any = await broker.groups.ask(group, request_of_group, _CALLER, wait=_wait)
        code = code_of(deleted.results[0].error_code)
        if code not in (*_GONE, ErrorCode.NON_EMPTY_GROUP):
            failed.append(f"group {group}: {code.name}")
        await _log(broker, request_of_group, deleted)
    return failed


async def _unknown(broker: Broker, topics: list[UUID]) -> None:
    """Wait until the broker has heard that topics are deleted, which a controller in another process knows before."""
    for _ in range(round(_LOADED_S / _LOOK_S)):
        if not any(topic in broker.image.topics_by_id for topic in topics):
            return
        await trio.sleep(_LOOK_S)


async def _log(broker: Broker, request: object, answer: object) -> None:
    sender = Sender(client_id=CLIENT_ID)
    await broker.change_log.write(
        request, answer, principal=sender.principal, client_id=sender.client_id, peer=sender.host
    )


async def _wait(purgatory: Purgatory, *keys: Hashable, until: Callable[[], bool], max_wait_ms: int) -> bool:
    return await purgatory.wait(*keys, until=until, max_wait_ms=max_wait_ms)
