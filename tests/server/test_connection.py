"""One connection: order, pipelining, waiting, closing. In memory on virtual time, and also over sockets if they make a
difference.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.config import Settings
from kbroker.handlers import CloseConnection
from kbroker.runtime.env import RealEnv
from kbroker.runtime.metrics import Metrics
from kbroker.runtime.turns import Turns
from kbroker.server.connection import Connection
from kbroker.server.dispatch import Dispatcher
from kbroker.server.memory import Memory
from kbroker.testing.net import stream_pair
from tests.server.serving import HANDLERS, Broker, Rig, framed, heart, serving
from wire.errors import ErrorCode
from wire.messages.fetch import FetchRequest
from wire.messages.heartbeat import HeartbeatResponse
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

MIB = 1024 * 1024


@pytest.fixture(params=["memory", "sockets"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """A server in memory, and one over sockets; every test ends within seconds."""
    with trio.fail_after(20):
        async with serving(in_memory=request.param == "memory") as running:
            yield running


def records(data: bytes, *, topic: str = "orders", acks: int = 1) -> ProduceRequest:
    """Produce of one partition."""
    partitions = [PartitionProduceData(index=0, records=data)]
    return ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=partitions)]
    )


async def test_pipelined_requests_are_answered_in_order(rig: Rig) -> None:
    client = await rig.connect()
    groups = ["", "checkpoint", "refuse"]
    await client.send(*((heart(groups[number % 3]), 0, number) for number in range(300)))
    replies = [await client.receive_heartbeat() for _ in range(300)]
    refused = ErrorCode.UNKNOWN_MEMBER_ID
    assert replies == [(number, refused if number % 3 == 2 else 0) for number in range(300)]


async def test_a_waiting_request_neither_delays_earlier_replies_nor_overtakes_them(rig: Rig) -> None:
    client = await rig.connect()
    await client.send((heart(), 0, 1), (heart(), 0, 2), (heart("wait", wait_ms=60_000), 0, 3), (heart(), 0, 4))
    assert [await client.receive_heartbeat() for _ in range(2)] == [(1, 0), (2, 0)]
    await wait_all_tasks_blocked()
    assert rig.broker.purgatory.waiting("key") == 1
    rig.broker.make_ready()
    assert [await client.receive_heartbeat() for _ in range(2)] == [(3, 0), (4, 0)]


async def test_one_connection_can_wait_repeatedly(rig: Rig) -> None:
    client = await rig.connect()
    await client.send((heart("wait", wait_ms=1), 0, 1), (heart("wait", wait_ms=1), 0, 2))
    timed_out = ErrorCode.REQUEST_TIMED_OUT
    assert [await client.receive_heartbeat() for _ in range(2)] == [(1, timed_out), (2, timed_out)]


async def test_a_wait_ends_at_its_deadline(autojump_clock: MockClock) -> None:
    async with serving(in_memory=True) as rig:
        client = await rig.connect()
        await client.send((heart("wait", wait_ms=500), 0, 1))
        assert await client.receive_heartbeat() == (1, ErrorCode.REQUEST_TIMED_OUT)
        assert trio.current_time() == pytest.approx(0.5)


async def test_a_closed_connection_ends_the_wait_of_its_request(rig: Rig) -> None:
    client = await rig.connect()
    # The second request stays unread while the first one waits; the end of the connection follows it.
    await client.send((heart("wait", wait_ms=60_000), 0, 1), (heart(), 0, 2))
    with trio.fail_after(5):
        while not rig.broker.purgatory.waiting("key"):
            await trio.lowlevel.checkpoint()
        client.stream.close()
        while rig.broker.purgatory.waiting("key") or rig.server.connections:
            await trio.lowlevel.checkpoint()


async def test_a_received_produce_completes_after_its_connection_closes(rig: Rig) -> None:
    client = await rig.connect()
    await client.send((records(b"first", topic="gated"), 7, 1), (records(b"second"), 7, 2))
    await rig.until("requests.Produce", 1)
    client.stream.close()
    await wait_all_tasks_blocked(0.01)
    rig.broker.gate.set()
    with trio.fail_after(5):
        while rig.server.connections:
            await trio.lowlevel.checkpoint()
    assert rig.broker.appended[0] == b"first"


async def test_acks_0_has_no_reply(rig: Rig) -> None:
    client = await rig.connect()
    await client.send((records(b"silent", acks=0), 7, 1), (heart(), 0, 2), (records(b"loud"), 7, 3))
    assert await client.receive_heartbeat() == (2, 0)
    assert (await client.receive(ProduceResponse, 7))[0] == 3
    assert rig.broker.appended == [b"silent", b"loud"]


async def test_pipelined_produce_requests_are_handled_before_the_first_reply(rig: Rig) -> None:
    client = await rig.connect()
    kinds = [(b"first", -1), (b"second", -1), (b"not waiting", 1), (b"third", -1), (b"silent", 0)]
    requests = [(records(data, acks=acks), 7, number) for number, (data, acks) in enumerate(kinds)]
    await client.send(*requests[:2], (heart(), 0, 9), *requests[2:])
    await rig.until("requests.Produce", 2)
    await wait_all_tasks_blocked(0.01)
    assert rig.broker.appended == [b"first", b"second"], "only requests of the same kind may overtake a wait"
    rig.broker.gate.set()
    assert [(await client.receive(ProduceResponse, 7))[0] for _ in range(2)] == [0, 1]
    assert await client.receive_heartbeat() == (9, 0)
    assert [(await client.receive(ProduceResponse, 7))[0] for _ in range(2)] == [2, 3]
    assert rig.broker.appended == [data for data, _ in kinds]


async def test_an_immediate_reply_waits_for_the_replies_before_it(rig: Rig) -> None:
    client = await rig.connect()
    await client.send((records(b"first", acks=-1), 7, 1), (records(b"second"), 7, 2))
    await rig.until("requests.Produce", 2)
    await wait_all_tasks_blocked(0.01)
    assert rig.broker.appended == [b"first", b"second"]
    (connection,) = rig.server.connections
    assert connection.stream.sent_bytes == 0
    rig.broker.gate.set()
    assert [(await client.receive(ProduceResponse, 7))[0] for _ in range(2)] == [1, 2]


async def test_a_connection_has_at_most_64_produce_requests_without_a_reply(rig: Rig) -> None:
    client = await rig.connect()
    await client.send(*((records(b"%d" % number, acks=-1), 7, number) for number in range(200)))
    await rig.until("requests.Produce", 64)
    await wait_all_tasks_blocked(0.01)
    assert len(rig.broker.appended) == 64
    rig.broker.gate.set()
    assert [(await client.receive(ProduceResponse, 7))[0] for _ in range(200)] == list(range(200))
    assert rig.broker.appended == [b"%d" % number for number in range(200)]


async def test_a_close_comes_after_the_replies_that_were_waited_for(rig: Rig) -> None:
    client = await rig.connect()
    await client.send((records(b"first", acks=-1), 7, 1), (records(b"", topic="close"), 7, 2))
    await rig.until("requests.Produce", 2)
    rig.broker.gate.set()
    assert (await client.receive(ProduceResponse, 7))[0] == 1
    assert await client.ends_without_reply()


async def test_a_close_does_not_delay_complete_replies(rig: Rig) -> None:
    client = await rig.connect()
    await client.send((heart(), 0, 1), (records(b"first", acks=-1), 7, 2), (records(b"", topic="close"), 7, 3))
    assert await client.receive_heartbeat() == (1, 0)
    rig.broker.gate.set()
    assert (await client.receive(ProduceResponse, 7))[0] == 2
    assert await client.ends_without_reply()


async def test_the_server_stops_after_the_replies_that_were_waited_for(rig: Rig) -> None:
    client = await rig.connect()
    await client.send((records(b"first", acks=-1), 7, 1), (records(b"second", acks=-1), 7, 2))
    await rig.until("requests.Produce", 2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(rig.server.stop, grace_ms=60_000))
        await wait_all_tasks_blocked(0.01)
        rig.broker.gate.set()
        assert [(await client.receive(ProduceResponse, 7))[0] for _ in range(2)] == [1, 2]
    assert await client.ends_without_reply()


async def test_a_fault_after_the_wait_closes_the_connection() -> None:
    """UNKNOWN_SERVER_ERROR would make Java clients send the records again with another sequence number."""
    async with serving(in_memory=True, logged_errors=1) as rig:
        client = await rig.connect()
        await client.send((records(b"first", acks=-1), 7, 1), (records(b"second", topic="lost", acks=-1), 7, 2))
        rig.broker.gate.set()
        assert (await client.receive(ProduceResponse, 7))[0] == 1
        assert await client.ends_without_reply()
        assert rig.count("requests.faults") == 1


async def test_no_reply_follows_a_missing_one() -> None:
    """Java clients match replies to requests by their order."""
    async with serving(in_memory=True, logged_errors=1) as rig:
        client = await rig.connect()
        await client.send((records(b"first", topic="lost", acks=-1), 7, 1), (records(b"second", acks=-1), 7, 2))
        rig.broker.gate.set()
        assert await client.ends_without_reply()
        assert rig.broker.appended == [b"first", b"second"]


async def test_a_fault_after_a_close_keeps_earlier_replies() -> None:
    async with serving(in_memory=True, logged_errors=1) as rig:
        client = await rig.connect()
        rig.broker.gate.set()
        topics = [("orders", -1), ("lost", -1), ("close", 1)]
        await client.send(*((records(b"x", topic=topic, acks=acks), 7, n) for n, (topic, acks) in enumerate(topics)))
        assert (await client.receive(ProduceResponse, 7))[0] == 0
        assert await client.ends_without_reply()


async def test_an_error_without_a_reply_closes_after_sending_earlier_replies(rig: Rig) -> None:
    client = await rig.connect()
    await client.send((heart(), 0, 1), (heart("close"), 0, 2), (heart(), 0, 3))
    assert await client.receive_heartbeat() == (1, 0)
    assert await client.ends_without_reply()
    assert rig.count("connections.closed_for_fault") == 1


@pytest.mark.parametrize("size", [1, 30_000, 40_000, 100_000, 3_000_000])
async def test_frames_of_every_size_arrive_whole_between_small_ones(rig: Rig, size: int) -> None:
    client = await rig.connect()
    data = bytes(range(256)) * (size // 256 + 1)

    async def send() -> None:
        await client.send((heart(), 0, 1), (records(data[:size]), 7, 2), (heart(), 0, 3), (records(data[:size]), 7, 4))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        assert await client.receive_heartbeat() == (1, 0)
        assert (await client.receive(ProduceResponse, 7))[0] == 2
        assert await client.receive_heartbeat() == (3, 0)
        assert (await client.receive(ProduceResponse, 7))[0] == 4
    assert rig.broker.appended == [data[:size]] * 2


async def test_the_next_frame_is_received_during_a_large_request(rig: Rig) -> None:
    client = await rig.connect()
    first, second = b"1" * 2 * MIB, b"2" * 2 * MIB
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, (records(first, topic="gated"), 7, 1))
        await rig.until("requests.Produce", 1)
        (connection,) = rig.server.connections
        nursery.start_soon(client.send, (records(second), 7, 2), (heart(), 0, 3))
        while connection.ahead is None:
            await trio.lowlevel.checkpoint()
        assert len(connection.ahead) > 2 * MIB
        assert rig.broker.appended == []
        rig.broker.gate.set()
        assert [(await client.receive(ProduceResponse, 7))[0] for _ in range(2)] == [1, 2]
        assert await client.receive_heartbeat() == (3, 0)
    assert rig.broker.appended == [first, second]


@pytest.mark.parametrize("rest", [b"", b"\x00\x00\x01", b"\xff\xff\xff\xff"], ids=["nothing", "a cut", "nonsense"])
async def test_a_large_request_completes_after_its_connection_ends(rig: Rig, rest: bytes) -> None:
    client = await rig.connect()
    await client.stream.send([framed(records(b"1" * MIB, topic="gated"), 7, 1) + rest])
    await rig.until("requests.Produce", 1)
    await wait_all_tasks_blocked(0.01)
    rig.broker.gate.set()
    assert (await client.receive(ProduceResponse, 7))[0] == 1
    assert rig.broker.appended == [b"1" * MIB]
    client.stream.close()
    while rig.server.connections:
        await trio.lowlevel.checkpoint()


async def test_a_large_request_can_close_the_connection(rig: Rig) -> None:
    client = await rig.connect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, (heart(), 0, 1), (records(b"1" * MIB, topic="close"), 7, 2), (heart(), 0, 3))
        assert await client.receive_heartbeat() == (1, 0)
        assert await client.ends_without_reply()
    assert rig.count("connections.closed_for_fault") == 1


async def test_a_request_can_arrive_byte_by_byte(rig: Rig) -> None:
    client = await rig.connect()
    for byte in framed(heart(), 0, 1) + framed(heart(), 0, 2):
        await client.stream.send([bytes([byte])])
        await wait_all_tasks_blocked()
    assert [await client.receive_heartbeat() for _ in range(2)] == [(1, 0), (2, 0)]


async def test_a_client_that_never_pauses_does_not_block_the_loop(rig: Rig) -> None:
    greedy, other = await rig.connect(), await rig.connect()
    answered = 0

    async def read() -> None:
        nonlocal answered
        while True:
            await greedy.receive(HeartbeatResponse, 0)
            answered += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        nursery.start_soon(greedy.stream.send, [framed(heart(), 0, 1) * 20_000])
        await rig.until("requests.Heartbeat", 1)
        await other.send((heart(), 0, 1))
        assert await other.receive_heartbeat() == (1, 0)
        assert rig.count("requests.Heartbeat") < 15_000
        nursery.cancel_scope.cancel()


async def test_w8_unread_replies_stop_the_requests_and_then_the_connection(
    autojump_clock: MockClock,
) -> None:
    async with serving("kbroker.send.grace.ms=60000", in_memory=True) as rig:
        client = await rig.connect()
        with pytest.raises(trio.BrokenResourceError):
            await client.stream.send([framed(heart(), 0, 1) * 100_000])
        # Two pipes of 64 KiB, the size of one receive, and the collected replies.
        assert rig.count("requests.Heartbeat") * len(framed(heart(), 0, 1)) < 1_000_000
        assert rig.count("connections.closed_for_delay") == 1
        assert 60 <= trio.current_time() < 63


async def test_w8_large_replies_are_not_collected(rig: Rig) -> None:
    client = await rig.connect()
    await client.send(*((FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=MIB, topics=[]), 11, 1),) * 500)
    await rig.until("requests.Fetch", 1)
    await wait_all_tasks_blocked(0.05)
    (connection,) = rig.server.connections
    held_by_the_network = connection.stream.sent_bytes
    assert rig.count("requests.Fetch") * MIB <= held_by_the_network + 2 * MIB


async def test_w8_a_slow_but_steady_reader_is_kept(autojump_clock: MockClock) -> None:
    settings = "kbroker.send.grace.ms=1000", "kbroker.progress.bytes.per.second=1000"
    async with serving(*settings, in_memory=True) as rig:
        client = await rig.connect()

        async def read_slowly() -> None:
            for _ in range(200):
                await client.stream.receive(500)
                await trio.sleep(0.25)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.stream.send, [framed(heart(), 0, 1) * 12_000])
            await read_slowly()
            assert trio.current_time() > 45
            assert len(rig.server.connections) == 1
            nursery.cancel_scope.cancel()


async def test_collected_replies_are_sent_when_the_server_stops(rig: Rig) -> None:
    client = await rig.connect()
    await client.send(*((heart(), 0, number) for number in range(200)))
    await rig.until("connections.accepted", 1)
    (connection,) = rig.server.connections
    while not connection.requests:
        await trio.lowlevel.checkpoint()
    answered = connection.requests
    assert answered < 200, "other tasks run between two requests"
    await rig.server.stop(grace_ms=5_000)
    assert [await client.receive_heartbeat() for _ in range(answered)] == [(number, 0) for number in range(answered)]


async def test_consecutive_large_requests_do_not_delay_the_stop(rig: Rig) -> None:
    client = await rig.connect()
    data = b"1" * MIB
    async with trio.open_nursery() as nursery:

        async def keep_sending() -> None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await client.send((records(data, topic="gated"), 7, 0))
                for number in range(1, 1_000):
                    await client.send((records(data), 7, number))

        nursery.start_soon(keep_sending)
        await rig.until("requests.Produce", 1)
        (connection,) = rig.server.connections
        while connection.ahead is None:
            await trio.lowlevel.checkpoint()
        nursery.start_soon(partial(rig.server.stop, grace_ms=60_000))
        await wait_all_tasks_blocked(0.01)
        rig.broker.gate.set()
        with trio.fail_after(10):
            while rig.server.connections:
                await trio.lowlevel.checkpoint()
        assert len(rig.broker.appended) <= 3
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("size", "first_bytes"), [(64 * MIB, 30_000), (30_000, 0)], ids=["large pieces", "bytes"])
async def test_a_frame_that_arrives_without_a_pause_does_not_keep_others_waiting(size: int, first_bytes: int) -> None:
    """The stream never waits, as a socket whose client sends as fast as the broker receives."""
    env, turns = RealEnv(), 0
    _, stream = stream_pair()
    first = struct.pack(">ihhih", size, 0, 9, 1, -1) + bytes(first_bytes)

    async def receive_zeroes(buffer: memoryview | bytearray) -> int:
        buffer[:] = bytes(len(buffer))
        return len(buffer)

    async def receive_one(_max_bytes: int) -> bytes:
        nonlocal first
        if connection.requests:
            return b""
        data, first = first or b"\0", b""
        return data

    stream.receive_into = receive_zeroes  # type: ignore[method-assign]
    stream.receive = receive_one  # type: ignore[method-assign]
    limits = Settings.load().limits
    dispatcher = Dispatcher(HANDLERS, Broker(), metrics=Metrics(), env=env, turns=Turns(env.now_ns), limits=limits)
    memory = Memory(max_request_bytes=-1, max_answer_bytes=MIB, max_login_bytes=MIB)
    connection = Connection(
        stream,
        listener="PLAINTEXT",
        dispatcher=dispatcher,
        env=env,
        max_frame_bytes=2 * size,
        max_request_bytes=size,
        memory=memory,
    )

    async def work() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += connection.frames.pending_bytes > 0

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            with suppress(CloseConnection):  # zeroes are no records
                await connection.serve()
            nursery.cancel_scope.cancel()
    assert turns > 1
