"""Share groups and streams groups that a broker of Apache Kafka has stored: they are refused, and stay as they are."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.coordinator.world import CALLER, GROUP, World
from wire.errors import ErrorCode, Malformed
from wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from wire.messages.delete_groups import DeleteGroupsRequest
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from wire.messages.offset_delete import OffsetDeleteRequest
from wire.messages.offset_fetch import OffsetFetchRequestGroup
from wire.messages.sync_group import SyncGroupRequest

SHARE, STREAMS = 11, 17
MINUTE_MS = 60_000
ASKED: list[tuple[Any, ErrorCode]] = [
    (HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="m"), ErrorCode.UNKNOWN_MEMBER_ID),
    (SyncGroupRequest(group_id=GROUP, generation_id=1, member_id="m", assignments=[]), ErrorCode.UNKNOWN_MEMBER_ID),
    (LeaveGroupRequest(group_id=GROUP, members=[MemberIdentity(member_id="m")]), ErrorCode.UNKNOWN_MEMBER_ID),
    (OffsetDeleteRequest(group_id=GROUP, topics=[]), ErrorCode.GROUP_ID_NOT_FOUND),
    (ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="m", member_epoch=0), ErrorCode.GROUP_ID_NOT_FOUND),
]


def key_of(kind: int, group_id: str = GROUP) -> bytes:
    return struct.pack(">hh", kind, len(group_id)) + group_id.encode()


def with_group(kind: int) -> World:
    """A group of this kind, whose offset is before its own record in the log, as after a compaction."""
    world = World(offsets_retention_minutes=1)
    world.commit(5)
    world.log.append((key_of(kind), b"\0\0\0\0\0\1\0"))
    world.reload()
    return world


@pytest.mark.parametrize("kind", [SHARE, STREAMS])
def test_no_other_group_is_stored_with_the_same_id(kind: int) -> None:
    world = with_group(kind)
    stored = len(world.log)
    assert world.join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.commit(7) == ErrorCode.GROUP_ID_NOT_FOUND
    assert world.commit(7, version=8) == ErrorCode.ILLEGAL_GENERATION
    assert world.commit_in_transaction(7) == ErrorCode.ILLEGAL_GENERATION
    deleted = world.decide(DeleteGroupsRequest(groups_names=[GROUP]))
    assert deleted.results[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    world.advance(5 * MINUTE_MS)
    assert len(world.log) == stored
    assert world.shard.group_ids() == []


@pytest.mark.parametrize(("request_", "code"), ASKED, ids=[type(request).__name__ for request, _ in ASKED])
def test_every_request_for_the_group_is_refused(request_: Any, code: ErrorCode) -> None:
    assert with_group(SHARE).decide(request_, CALLER).error_code == code


def test_its_offsets_are_not_missing_but_refused() -> None:
    world = with_group(STREAMS)
    answer = world.shard.fetch_offsets(OffsetFetchRequestGroup(group_id=GROUP, topics=None))
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    assert world.shard.offsets_of(GROUP)["orders"][0].offset == 5, "it stays for the next leader"


def test_a_deleted_group_leaves_its_id_free() -> None:
    world = with_group(STREAMS)
    world.log.append((key_of(STREAMS), None))
    world.reload()
    assert world.commit(7) == ErrorCode.NONE
    assert world.committed() == 7


@pytest.mark.parametrize("key", [b"\0\x0b", b"\0\x0b\0\5ab", b"\0\x0b\xff\xff", b"\0\x11\0\1\xff"])
def test_a_damaged_key_is_reported(key: bytes) -> None:
    with pytest.raises(Malformed):
        World().shard.replay(key, b"")
