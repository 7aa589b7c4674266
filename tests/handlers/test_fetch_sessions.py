from uuid import UUID

import trio

from kbroker.testing.memory_node import Client, MemoryBroker
from tests.handlers.asking import (
    ONE,
    batch,
    create_topic,
    delete_topic,
    fetch_in_background,
    fetching,
    fill,
    parts,
    produce,
    sizes,
    values,
    wanted,
)
from wire.errors import ErrorCode
from wire.messages.fetch import FetchRequest, FetchResponse, FetchTopic


async def test_a_session_gets_only_changed_partitions(client: Client) -> None:
    topic_id = await create_topic(client, "t", partitions=2)
    await fill(client, "t", 1)
    opened = await client.ask(fetching(topic_id, wanted(0), wanted(1), session=(0, 0), replica_epoch=-1))
    session = opened.session_id
    assert session > 0
    assert sizes(opened) == {0: ONE, 1: 0}

    async def go_on(epoch: int, *asked: object, forget: tuple[int, ...] = ()) -> FetchResponse:
        request = fetching(topic_id, *asked, session=(session, epoch), forget=forget, replica_epoch=-1)  # type: ignore[arg-type]
        answer = await client.ask(request)
        assert (answer.error_code, answer.session_id) == (0, session)
        assert isinstance(answer, FetchResponse)
        return answer

    assert sizes(await go_on(1, wanted(0, 1))) == {}
    await fill(client, "t", 1, partition=1)
    assert sizes(await go_on(2)) == {1: ONE}
    assert sizes(await go_on(3)) == {1: ONE}, "records are returned until the offset moves"
    assert sizes(await go_on(4, forget=(1,))) == {}
    assert sizes(await go_on(5, wanted(1, 1))) == {1: 0}, "a partition that is new in the session is returned"


async def test_partitions_that_returned_records_move_to_the_end(client: Client) -> None:
    await create_topic(client, "t", partitions=3)
    for partition in range(3):
        await fill(client, "t", 2, partition=partition)
    opened = await client.ask(fetching("t", *map(wanted, range(3)), session=(0, 0), max_bytes=1), version=12)
    assert [index for index, size in sizes(opened).items() if size] == [0]
    found = []
    for epoch in range(1, 7):
        answer = await client.ask(fetching("t", session=(opened.session_id, epoch), max_bytes=1), version=12)
        found += [index for index, size in sizes(answer).items() if size]
    assert found == [0, 1, 2, 0, 1, 2]


async def test_w8_wrong_sessions_are_refused(client: Client) -> None:
    topic_id = await create_topic(client, "t")
    opened = await client.ask(fetching("t", wanted(), session=(0, 0)), version=12)
    session = opened.session_id

    async def error(id_: int, epoch: int, topic: str | UUID = "t", version: int = 12) -> tuple[int, int, int]:
        request = fetching(topic, wanted(), session=(id_, epoch), replica_epoch=-1 if version > 14 else None)
        answer = await client.ask(request, version=version)
        return answer.error_code, answer.session_id, len(answer.responses)

    assert await error(session + 1, 1) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, 0)
    assert await error(session, 2) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0, 0)
    assert await error(session, 1, topic_id, 17) == (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 0, 0)
    assert (await error(session, 1))[:2] == (0, session), "the session still exists"
    assert (await error(session, -1))[:2] == (0, 0)
    assert await error(session, 2) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, 0)


async def test_reusing_a_session_elsewhere_ends_the_wait_with_an_error(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t")
    opened = await client.ask(fetching("t", wanted(), session=(0, 0)), version=12)
    async with trio.open_nursery() as nursery:
        request = fetching("t", session=(opened.session_id, 1), max_wait_ms=500)
        answers = await fetch_in_background(nursery, broker, request)
        second = await client.ask(fetching("t", session=(opened.session_id, 2)), version=12)
        assert second.error_code == 0
    ((_, answer),) = answers
    assert (answer.error_code, answer.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])


async def test_r15_a_recreated_topic_returns_no_data_of_the_old_one(client: Client) -> None:
    old = await create_topic(client, "t")
    await produce(client, "t", batch(b"old"))
    opened = await client.ask(fetching(old, wanted(), session=(0, 0), replica_epoch=-1))
    assert values(parts(opened)[0]) == [b"old"]
    await delete_topic(client, "t")
    gone = await client.ask(fetching(old, session=(opened.session_id, 1), replica_epoch=-1))
    assert parts(gone)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    new = await create_topic(client, "t")
    assert new != old
    await produce(client, "t", batch(b"new"))
    other = await client.ask(fetching(old, session=(opened.session_id, 2), replica_epoch=-1))
    assert parts(other)[0].error_code == ErrorCode.INCONSISTENT_TOPIC_ID
    assert (
        parts(await client.ask(fetching(old, wanted(), replica_epoch=-1)))[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    )
    part = parts(await client.ask(fetching(new, wanted(), replica_epoch=-1)))[0]
    assert (part.high_watermark, values(part)) == (1, [b"new"])


async def test_topics_have_separate_entries_in_one_reply(client: Client) -> None:
    for name in ("a", "b"):
        await create_topic(client, name, partitions=2)
        await produce(client, name, batch(name.encode()))
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        topics=[FetchTopic(topic=name, partitions=[wanted(index)]) for index in (0, 1) for name in ("a", "b")],
    )
    answer = await client.ask(request, version=12)
    found = [(topic.topic, part.partition_index) for topic in answer.responses for part in topic.partitions]
    assert found == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
