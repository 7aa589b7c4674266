"""ListGroups, DescribeGroups and DeleteGroups on a running node."""

from __future__ import annotations

import pytest

from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import create_topic
from tests.handlers.groups import commit, fetch_group, find, form, offsets_of
from wire.errors import ErrorCode
from wire.messages.delete_groups import DeleteGroupsRequest
from wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from wire.messages.list_groups import ListGroupsRequest


async def some_groups(client: Client) -> None:
    """Create a stable group, and two groups with only offsets, in different partitions."""
    await find(client)
    await create_topic(client, "t")
    await form(client, "stable")
    for group_id in ("a", "b"):
        await commit(client, {("t", 0): 5}, group_id=group_id)


async def listed(client: Client, *, version: int = 5, **filters: list[str]) -> dict[str, tuple[str, str, str]]:
    answer = await client.ask(ListGroupsRequest(**filters), version=version)
    assert answer.error_code == 0
    return {one.group_id: (one.protocol_type, one.group_state, one.group_type) for one in answer.groups}


async def described(
    client: Client, *group_ids: str, version: int = 6, operations: bool = False
) -> list[DescribedGroup]:
    request = DescribeGroupsRequest(groups=list(group_ids), include_authorized_operations=operations)
    answer = await client.ask(request, version=version)
    return list(answer.groups)


async def deleted(client: Client, *group_ids: str, version: int = 2) -> list[tuple[str, int]]:
    answer = await client.ask(DeleteGroupsRequest(groups_names=list(group_ids)), version=version)
    return [(one.group_id, one.error_code) for one in answer.results]


@pytest.mark.parametrize("version", range(6))
async def test_the_groups_of_all_partitions_are_listed(client: Client, version: int) -> None:
    assert await listed(client, version=version) == {}
    await some_groups(client)
    states = ("Stable", "Empty") if version >= 4 else ("", "")
    kind = "classic" if version >= 5 else ""
    assert await listed(client, version=version) == {
        "stable": ("consumer", states[0], kind),
        "a": ("", states[1], kind),
        "b": ("", states[1], kind),
    }


async def test_lists_are_filtered(client: Client) -> None:
    await some_groups(client)
    assert set(await listed(client, states_filter=["Empty"])) == {"a", "b"}
    assert set(await listed(client, states_filter=[" EMPTY ", "stable", "nonsense"])) == {"a", "b", "stable"}
    assert await listed(client, states_filter=["nonsense"]) == {}
    assert await listed(client, states_filter=["Dead"]) == {}
    assert set(await listed(client, types_filter=["classic"])) == {"a", "b", "stable"}
    assert set(await listed(client, types_filter=["consumer", " Classic "])) == {"a", "b", "stable"}
    assert await listed(client, types_filter=["consumer"]) == {}
    assert await listed(client, types_filter=["nonsense"]) == {}


@pytest.mark.parametrize("version", range(7))
async def test_groups_are_described_in_the_order_of_the_request(client: Client, version: int) -> None:
    await some_groups(client)
    found = await described(client, "b", "nobody", "stable", version=version)
    assert [(one.group_id, one.group_state) for one in found] == [
        ("b", "Empty"),
        ("nobody", "Dead"),
        ("stable", "Stable"),
    ]
    unknown = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0
    assert [one.error_code for one in found] == [0, unknown, 0]
    assert [len(one.members) for one in found] == [0, 0, 1]
    assert found[2].protocol_data == "range"


async def test_authorized_operations_of_groups_are_returned_only_on_request(client: Client) -> None:
    await some_groups(client)
    assert [one.authorized_operations for one in await described(client, "a", "nobody")] == [-0x80000000] * 2
    found = await described(client, "a", "nobody", operations=True)
    assert [one.authorized_operations for one in found] == [3400, -0x80000000]


async def test_a_broker_that_is_not_coordinator_fails_each_group(client: Client) -> None:
    assert [one.error_code for one in await described(client, "a", "b")] == [ErrorCode.NOT_COORDINATOR] * 2
    assert await deleted(client, "a", "b") == [("a", ErrorCode.NOT_COORDINATOR), ("b", ErrorCode.NOT_COORDINATOR)]


@pytest.mark.parametrize("version", range(3))
async def test_deleted_groups_stay_deleted(client: Client, broker: MemoryBroker, version: int) -> None:
    await some_groups(client)
    assert await deleted(client, "a", "stable", "nobody", "a", version=version) == [
        ("a", 0),
        ("stable", ErrorCode.NON_EMPTY_GROUP),
        ("nobody", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    assert set(await listed(client)) == {"b", "stable"}
    assert (await fetch_group(client, "a")).topics == []
    async with memory_broker(broker.disk.crash(Loss.PROCESS_DEATH)) as again:
        client = await again.connect()
        assert await offsets_of(client, "b") == {("t", 0): 5}
        assert await offsets_of(client, "a") == {}
        assert await offsets_of(client, "stable") == {}
        assert set(await listed(client)) == {"b", "stable"}
