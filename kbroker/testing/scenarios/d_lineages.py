"""What the tier has of histories that were lost: the unclean scenarios of KIP-405."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.testing.scenarios import TWO_SEGMENTS, epochs_text, scenario

if TYPE_CHECKING:
    from kbroker.testing.scenarios._stage import Stage

LARGE_SEGMENT: Final = 1 << 20


@scenario(
    "kip-405-lost-records",
    title="The tier has a copy of records that were lost",
    summary="Both replicas lose records that the tier already has, and their offsets are used again (KIP-405, 3).",
    opening="""
        This is the second scenario of KIP-101 with a tier. A has copied a segment to the tier when both replicas fail
        at once. B comes back first, without the records that it had not flushed, and writes others at their offsets.
        Now the tier has a segment with records that no longer exist, at offsets that exist.
    """,
    lesson="""
        An object in the tier cannot be truncated, and need not be: like a record in a log, a copy is identified by
        offset and leader epoch. The metadata list which epochs each copy has from which offset. A leader serves only
        copies that lie on its own line of epochs, and copies its own segments even if the offsets are there already.
    """,
    source="KIP-405, follower fetch scenario 3: multiple hard failures (scenario 2 of KIP-101)",
    has_tier=True,
    brokers=3,
)
async def lost_records(stage: Stage) -> dict[str, Any]:
    """A leads; B has only m0 on its disk."""
    await stage.create_topic("A", "B", min_insync_replicas=1, local_retention_bytes=TWO_SEGMENTS)
    await stage.produce("m0")
    await stage.until(lambda: stage.end("B") == 1, "B has m0")
    await stage.stop("B")
    stage.node("B").settings["log.segment.bytes"] = LARGE_SEGMENT
    await stage.start("B")
    await stage.until(lambda: stage.isr == ["A", "B"], "B is in sync again")
    await stage.produce("m1", "m2", "m3")
    await stage.until(lambda: stage.finished("A") == [(0, 2)], "a segment is copied")
    await stage.settle()
    stage.step(
        "A leads, B follows, and all four records are committed. A has copied its first segment, offsets 0 to 2."
    )
    await stage.kill("A")
    await stage.until(lambda: stage.leader == "B", "B is elected")
    await stage.kill("B", power=True)
    stage.node("B").settings.clear()
    stage.step(
        """A fails, and then B loses its power, the last in-sync replica. B had larger segments than A, and had
        flushed only m0 to its disk, at its clean restart."""
    )
    await stage.start("B")
    await stage.until_leads("B")
    await stage.produce("n1", "n2", "n3")
    stage.step(
        f"""B comes back first and leads in epoch {stage.epoch("B")}. The producer writes n1, n2 and n3 at offsets 1
        to 3. The tier still has m1 and m2 at two of these offsets."""
    )
    await stage.until(lambda: len(stage.finished("B")) == 2, "B copies its segment")
    await stage.start("A")
    await stage.settle("A", "B")
    stage.step(
        f"""B copies its own first segment: the old copy is on its line of epochs only up to offset 0. A comes back,
        follows B in epoch {stage.epoch("A")}, truncates m1, m2 and m3, and fetches n1 to n3."""
    )
    found = await _read_through_the_tier(stage)
    stage.step(
        f"""After more records, both delete their first segment locally: the local logs start at
        {stage.local_start("B")}. A consumer reads from offset 0: {", ".join(found)}. The first ones come from the
        tier. B has chosen the copy by its epochs: m1 and m2 never come back."""
    )
    return {"read": found, "copies": stage.finished("B"), "A": stage.values("A"), "B": stage.values("B")}


async def _read_through_the_tier(stage: Stage) -> list[str]:
    """Produce until both replicas have deleted a segment locally, and read everything."""
    await stage.produce("n4", "n5", "n6", "n7", "n8")
    await stage.until(lambda: stage.local_start("B") == stage.local_start("A") == 3, "both delete a segment locally")
    await stage.until(lambda: stage.finished("B") == stage.finished("A"), "A has read the metadata")
    await stage.settle()
    return await stage.read()


@scenario(
    "kip-405-unclean-election",
    title="An unclean election, and a tier that knows more than the new leader",
    summary="A replica that is far behind is elected, while the tier has records beyond its end (KIP-405, scenario 4).",
    opening="""
        B has fallen behind and left the ISR. A goes on alone, copies segments to the tier, and fails. The topic allows
        unclean elections, so B leads, with a log that ends before what the tier has. It might look as if the tier could
        give B back what it lost.
    """,
    lesson="""
        An unclean election chooses the history of the new leader, also for the tier. The records after its end are
        lost, on the old leader and in the tier alike: their copies are not on the line of epochs of the new leader, so
        they are never served. To take them would mean to join two histories, for consumers and producers that may have
        seen both.
    """,
    source="KIP-405, follower fetch scenario 4: unclean leader election",
    has_tier=True,
    brokers=3,
    settings={"replica.lag.time.max.ms": 2_000},
)
async def unclean_election(stage: Stage) -> dict[str, Any]:
    """B knows offsets 0 and 1 only."""
    await _fall_behind(stage)
    await stage.kill("A")
    await stage.until_leads("B")
    await stage.produce("n2", "n3")
    stage.step(
        f"""A fails. The controller elects B uncleanly, in epoch {stage.epoch("B")}, although the tier has offsets up
        to 5 and the log of B ended at 2. n2 and n3 get offsets 2 and 3."""
    )
    await stage.until(lambda: len(stage.finished("B")) == 3, "B copies its segment")
    stage.mend()
    await stage.start("A")
    await stage.settle("A", "B")
    stage.step(
        f"""B has copied its own segment with n2. A comes back, follows B in epoch {stage.epoch("A")}, and truncates
        everything after m1, although it had been committed."""
    )
    found = await _read_through_the_tier(stage)
    stage.step(
        f"""After more records, both delete their first segment locally. A consumer reads from offset 0:
        {", ".join(found)}. Offset 2 comes from the copy of B. The copies of A with m2 to m5 are still in the tier,
        but not on the line of epochs of B, so no consumer ever reads them."""
    )
    return {"read": found, "copies": stage.finished("B"), "A": stage.values("A"), "B": stage.values("B")}


@scenario(
    "kip-405-two-histories",
    title="Two unclean elections leave two histories in the tier",
    summary="Two leaders copy different records at the same offsets, and the first one returns (KIP-405, scenario 5).",
    opening="""
        A copies segments and fails; B, far behind, is elected uncleanly and copies its own; then B fails, and A is
        elected again with its old log. The tier has copies of both histories. Which records a consumer reads from it
        depends on who leads, and it must never be a mixture.
    """,
    lesson="""
        The tier may have several segments for one offset. A leader follows its own line of epochs from the newest one
        back, and takes for each offset the copy of that epoch. So consumers and new followers see one history: that of
        the leader.
    """,
    source="KIP-405, follower fetch scenario 5: log divergence in remote storage after unclean leader elections",
    has_tier=True,
    settings={"replica.lag.time.max.ms": 2_000},
    brokers=3,
)
async def two_histories(stage: Stage) -> dict[str, Any]:
    """A, then B, then A; C is empty."""
    await _fall_behind(stage)
    await stage.kill("A")
    await stage.until_leads("B")
    await stage.produce("n2", "n3", "n4", "n5", "n6", "n7", "n8")
    await stage.until(lambda: len(stage.finished("B")) >= 4, "B copies its segments")
    await stage.until(lambda: stage.local_start("B") >= 3, "B deletes its first segment locally")
    seen = await stage.read()
    stage.step(
        f"""A fails, and B is elected uncleanly in epoch {stage.epoch("B")}. It writes, copies its own segments, and
        deletes the first ones locally. A consumer reads {", ".join(seen)}: the history of B."""
    )
    await stage.kill("B")
    stage.mend()
    await stage.start("A")
    await stage.until_leads("A")
    await stage.produce("m7", "m8", "m9")
    await stage.until(lambda: stage.local_start("A") >= 3, "A deletes a segment locally")
    found = await stage.read()
    stage.step(
        f"""B fails, and A is elected uncleanly in epoch {stage.epoch("A")}, with its old log. It goes on at offset
        7. A consumer reads {", ".join(found)}: the history of A, from the copies that A made."""
    )
    await stage.reassign("A", "C")
    await stage.settle("A", "C")
    history = stage.look("C")["epochs"]
    stage.step(
        f"""C, a new and empty replica, is built from the tier. It finds the copy before offset
        {stage.local_start("C")} by the epochs of A, and has the history of A: {epochs_text(history)}. Epoch 1, in
        which B led, is not in it."""
    )
    return {"read_from_B": seen, "read_from_A": found, "history": history}


async def _fall_behind(stage: Stage) -> None:
    """B has offsets 0 and 1; A has seven records, and the tier the first six."""
    await stage.create_topic(
        "A", "B", min_insync_replicas=1, unclean_leader_election_enable="true", local_retention_bytes=TWO_SEGMENTS
    )
    await stage.produce("m0", "m1")
    await stage.until(lambda: stage.high_watermark("B") == 2, "B knows m0 and m1")
    stage.cut("A", "B")
    await stage.produce("m2", acks=1)
    await stage.until(lambda: stage.isr == ["A"], "B leaves the ISR")
    await stage.produce("m3", "m4", "m5", "m6")
    await stage.until(lambda: stage.finished("A") == [(0, 2), (3, 5)], "two segments are copied")
    stage.step(
        """B has not heard from A since m1, and has left the ISR. A has committed m2 to m6 alone, and copied two
        segments to the tier."""
    )
