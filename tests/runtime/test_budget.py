"""Byte budgets, on virtual time."""

from __future__ import annotations

from functools import partial

import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.runtime.budget import ByteBudget, Claim, EvictableClaim, EvictingBudget, SplitBudget


async def take(claim: Claim, size: int, order: list[int], number: int) -> None:
    await claim.take(size)
    order.append(number)


async def test_claims_that_do_not_fit_wait_in_order() -> None:
    budget = ByteBudget(100)
    holder, claims, order = budget.claim(), [budget.claim() for _ in range(3)], list[int]()
    assert holder.try_take(90)
    async with trio.open_nursery() as nursery:
        for number, claim in enumerate(claims):
            nursery.start_soon(take, claim, (60, 5, 40)[number], order, number)
            await wait_all_tasks_blocked()
        assert order == []
        assert len(budget) == 3
        assert not budget.claim().try_take(1), "a new claim must not pass waiting ones"
        holder.release()
        await wait_all_tasks_blocked()
        assert sorted(order) == [0, 1]
        claims[0].release()
    assert order[2:] == [2]
    for claim in claims:
        claim.release()
        claim.release()
    assert budget.used_bytes == 0


async def test_if_all_holders_wait_the_first_one_proceeds() -> None:
    budget = ByteBudget(100)
    claims, order = [budget.claim() for _ in range(5)], list[int]()
    assert all(claim.try_take(20) for claim in claims)
    async with trio.open_nursery() as nursery:
        for number, claim in enumerate(claims):
            nursery.start_soon(take, claim, 1_000, order, number)
            await wait_all_tasks_blocked()
        assert order == [0]
        assert budget.used_bytes == 1_100
        for claim in claims:
            claim.release()
            await wait_all_tasks_blocked()
    assert order == [0, 1, 2, 3, 4]
    assert budget.used_bytes == 0


async def test_a_claim_above_the_budget_waits_until_it_is_empty() -> None:
    budget = ByteBudget(10)
    small, large = budget.claim(), budget.claim()
    await small.take(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(large.take, 1_000)
        await wait_all_tasks_blocked()
        assert large.held_bytes == 0
        small.release()
    assert large.held_bytes == 1_000


async def test_an_empty_claim_changes_nothing() -> None:
    budget = ByteBudget(10)
    nothing, large = budget.claim(), budget.claim()
    await nothing.take(0)
    nothing.release()
    await large.take(1_000)
    assert large.held_bytes == 1_000


async def test_a_cancelled_wait_lets_the_next_claim_in() -> None:
    budget = ByteBudget(100)
    holder, large, small = budget.claim(), budget.claim(), budget.claim()
    assert holder.try_take(50)
    async with trio.open_nursery() as nursery, trio.open_nursery() as given_up:
        given_up.start_soon(large.take, 80)
        await wait_all_tasks_blocked()
        nursery.start_soon(small.take, 30)
        await wait_all_tasks_blocked()
        assert small.held_bytes == 0
        given_up.cancel_scope.cancel()
    assert (large.held_bytes, small.held_bytes) == (0, 30)
    small.release()
    holder.release()
    assert budget.used_bytes == 0


async def test_large_claims_leave_half_to_small_ones() -> None:
    budget = SplitBudget(100, small_bytes=10)
    assert budget.claim(11).try_take(50)
    assert not budget.claim(11).try_take(1)
    assert budget.claim(10).try_take(50)
    assert not budget.claim(1).try_take(1)
    assert budget.used_bytes == 100
    assert SplitBudget(-1, small_bytes=10).claim(11).try_take(1 << 40)


def test_shared_bytes_leave_some_for_the_next_reply() -> None:
    budget = EvictingBudget(1_000)
    claims = [EvictableClaim(budget, lambda: None) for _ in range(20)]
    shares = [claim.share(500) for claim in claims]
    assert shares[:3] == [125, 93, 70]
    assert sum(shares) == budget.used_bytes <= 500
    assert claims[0].share(50) < 5
    for claim in claims:
        claim.release()
    assert budget.used_bytes == 0


def test_beyond_its_bound_the_connections_that_stalled_longest_are_evicted() -> None:
    budget, dropped = EvictingBudget(100), list[str]()
    names = ("answering", "moving", "stalled", "newest")
    claims = {name: EvictableClaim(budget, partial(dropped.append, name)) for name in names}
    for name in names[:3]:
        claims[name].take(30)
        claims[name].is_evictable = name != "answering"
    claims["moving"].note_progress()
    claims["newest"].take(30)
    assert dropped == ["stalled"]
    assert (budget.used_bytes, budget.evicted) == (90, 1)
    claims["stalled"].release()
    assert budget.used_bytes == 90
