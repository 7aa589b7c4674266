"""Model clients that produce in transactions.

    run_transactions   one or more producers of one transactional id, which write to several partitions; each fences
                       the one before, and takes over again after a time
    Transformer        a member of a group that reads its partitions with isolation level read_committed, and writes a
                       record for each one and the offset after it in one transaction

Now and then a producer aborts, dies in the middle of a transaction, or pauses for longer than the time-out of its
transactions, after which the coordinator aborts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import trio

from kbroker.testing.cluster import MemoryCluster
from kbroker.testing.draws import Draws
from kbroker.testing.history import Function, Type
from kbroker.testing.model_group import GroupPlan, Member, Offsets
from kbroker.testing.model_reader import (
    COMMITTED,
    EARLIEST,
    FETCH_VERSION,
    fetch_request,
    offset_at,
    records_of,
    visible,
)
from kbroker.testing.model_router import BACKOFF_MS, Partition, Router, Unreachable, pause
from kbroker.testing.recorder import History
from kbroker.testing.transactional_client import Broken, Refused, TransactionalClient
from wire.errors import ErrorCode, code_of
from wire.record_batch import batches

_WAIT_MS: Final = 100
_MOST_INPUTS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsPlan:
    """What the producers of a transactional id do.

    Shape  producers: how many take turns; aborts, dies and stalls are probabilities in each transaction
    Units  pause_ms between two transactions; takeover_ms the longest time until a fenced producer comes back;
           patience_ms until a batch without an answer is given up, None: not before its transaction is
    """

    name: str
    topic: str
    partitions: tuple[int, ...]
    producers: int = 1
    timeout_ms: int = 10_000
    pause_ms: int = 200
    max_batches: int = 4
    value_bytes: int = 100
    aborts: float = 0.2
    dies: float = 0.02
    stalls: float = 0.02
    takeover_ms: int = 5_000
    patience_ms: int | None = None


async def run_transactions(
    cluster: MemoryCluster, plan: TransactionsPlan, history: History, *, seed: int, stopping: trio.Event
) -> None:
    """Produce in transactions until the run stops."""
    async with trio.open_nursery() as nursery:
        for number in range(plan.producers):
            name = f"{plan.name}-{number}"
            router = Router(cluster, name)
            client = TransactionalClient(
                router, name, plan.name, history, timeout_ms=plan.timeout_ms, stopping=stopping,
                patience_ms=plan.patience_ms,
            )  # fmt: skip
            nursery.start_soon(_Producer(router, plan, client, number, seed=seed, stopping=stopping).run)


class _Producer:
    """One of the producers of a transactional id."""

    def __init__(
        self, router: Router, plan: TransactionsPlan, client: TransactionalClient, number: int, *, seed: int,
        stopping: trio.Event,
    ) -> None:  # fmt: skip
        self._router = router
        self._plan = plan
        self._client = client
        self._number = number
        self._seed = seed
        self._stopping = stopping

    async def run(self) -> None:
        """Work until the run stops."""
        turn = 0
        await pause(self._stopping, Draws(self._seed, self._client.name).below(self._plan.pause_ms + 1))
        await pause(self._stopping, self._number * self._plan.takeover_ms)
        while not self._stopping.is_set():
            turn += 1
            draws = Draws(self._seed, self._client.name, turn)
            try:
                if not self._client.is_ready:
                    await self._client.init()
                await self._transact(draws)
                await pause(self._stopping, self._plan.pause_ms)
            except Broken:
                longest = self._plan.takeover_ms if self._plan.producers > 1 else BACKOFF_MS
                await pause(self._stopping, draws.between(BACKOFF_MS, longest))
        self._router.close()

    async def _transact(self, draws: Draws) -> None:
        plan, client = self._plan, self._client
        try:
            await client.begin()
            count = draws.between(1, plan.max_batches)
            stalls_at = draws.below(count) if draws.chance(plan.stalls) else -1
            dies_at = draws.below(count) if draws.chance(plan.dies) else -1
            for number in range(count):
                payloads = [draws.bytes(draws.below(plan.value_bytes + 1)) for _ in range(draws.between(1, 3))]
                await client.send((plan.topic, draws.choice(plan.partitions)), payloads)
                if number == stalls_at:
                    await pause(self._stopping, draws.between(plan.timeout_ms // 2, 2 * plan.timeout_ms))
                if number == dies_at:
                    client.forget()
                    return
            await client.end(committed=not draws.chance(plan.aborts))
        except Refused:
            await client.end(committed=False)


class Transformer(Member):
    """A member that consumes, transforms and produces."""

    def __init__(
        self, router: Router, plan: GroupPlan, number: int, history: History, offsets: Offsets, *, seed: int
    ) -> None:
        super().__init__(router, plan, number, history, offsets, seed=seed)
        self._client: TransactionalClient | None = None
        self._turn = 0
        self._seed = seed

    async def run(self, stopping: trio.Event) -> None:
        router = Router(self._router.cluster, self._name)
        self._client = TransactionalClient(
            router, self._name, self._name, self._history, timeout_ms=self._plan.timeout_ms, stopping=stopping
        )
        await super().run(stopping)
        router.close()

    async def _serve(self) -> None:
        assert self._client is not None, "run has made it"
        self._turn += 1
        draws = Draws(self._seed, self._name, self._turn)
        committed = await self._read()
        for index in [index for index in self._owned if index in committed]:
            try:
                if not self._client.is_ready:
                    await self._client.init()
                if self._is_gone(await self._transform(self._client, index, max(committed[index], 0), draws)):
                    return
            except Broken as error:
                raise Unreachable(str(error)) from error

    async def _transform(self, client: TransactionalClient, index: int, position: int, draws: Draws) -> ErrorCode:
        """Read the next records of a partition, write as many, and commit the offset after them."""
        partition = self._plan.topic, index
        key = f"{partition[0]}-{index}"
        inputs, following = await self._inputs(partition, position, draws.between(1, _MOST_INPUTS))
        if following == position:
            return ErrorCode.NONE
        name = await client.begin()
        self._history.note(client.name, Function.ASSIGN, Type.OK, key, offset=position)
        self._offsets.begin()
        try:
            for offset, value in inputs:
                self._history.note(
                    client.name, Function.POLL, Type.OK, key, value=value, offset=offset, transaction=name
                )
                payload = value.encode() + draws.bytes(draws.below(40))
                await client.send((self._plan.writes_to, draws.below(self._plan.outputs)), [payload])
            code = await client.commit_offset(
                self._plan.name, partition, following, generation=self._generation, member_id=self._id
            )
            if draws.chance(0.02):
                client.forget()
            else:
                await client.end(committed=code is ErrorCode.NONE and not draws.chance(0.1))
        except Refused:
            await client.end(committed=False)
            return ErrorCode.NONE
        finally:
            self._offsets.changing -= 1
        return code

    async def _inputs(self, partition: Partition, position: int, most: int) -> tuple[list[tuple[int, str]], int]:
        """Up to so many records from a position, and the position after them. Errors: Unreachable."""
        node = await self._router.leader(partition)
        request = fetch_request(partition, position, wait_ms=_WAIT_MS, isolation_level=COMMITTED)
        found = await self._fetched(node, request, partition)
        if code_of(found.error_code) is ErrorCode.OFFSET_OUT_OF_RANGE:
            position = await offset_at(self._router, node, partition, EARLIEST)
            request = fetch_request(partition, position, wait_ms=_WAIT_MS, isolation_level=COMMITTED)
            found = await self._fetched(node, request, partition)
        if found.error_code:
            await self._router.forget(partition)
            raise Unreachable(code_of(found.error_code).name)
        read = list(batches(found.records or b""))
        if not all(self._history.received(self._name, f"{partition[0]}-{partition[1]}", batch) for batch in read):
            raise Unreachable(ErrorCode.CORRUPT_MESSAGE.name)
        inputs = [one for batch in visible(read, found.aborted_transactions) for one in records_of(batch, position)]
        if len(inputs) > most:
            return inputs[:most], inputs[most][0]
        return inputs, max([position, *(batch.next_offset for batch in read)])

    async def _fetched(self, node: int, request: object, partition: Partition) -> Any:
        try:
            answer = await self._router.ask(node, request, version=FETCH_VERSION)
        except Unreachable:
            await self._router.forget(partition)
            raise
        if answer.error_code:
            raise Unreachable(code_of(answer.error_code).name)
        return answer.responses[0].partitions[0]
