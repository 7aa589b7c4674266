"""How followers and leaders use the tier: the scenarios of KIP-405."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.testing.scenarios import TWO_SEGMENTS, epochs_text, scenario

if TYPE_CHECKING:
    from kbroker.testing.scenarios._stage import Stage

PRODUCER: Final = 7
LOCAL_MS: Final = 30_000
SLOW_MS: Final = 3_000


async def _next_epoch(stage: Stage, name: str) -> None:
    """Restart a leader that has no other replica in sync: one epoch passes without a leader, and it leads the next."""
    await stage.stop(name)
    await stage.start(name)
    await stage.until_leads(name)


@scenario(
    "kip-405-empty-follower",
    title="An empty follower of a leader whose first records are only in the tier",
    summary="A new replica cannot copy what its leader no longer has, and asks the tier for the history (KIP-405, 1).",
    opening="""
        A leads a tiered partition. Its first segment is in the tier and no longer on its disk. A new, empty replica on
        B begins to fetch at offset 0, which A cannot serve to a follower. B needs two things: to know where to begin,
        and the leader epochs of the records before that, because without them it could neither lead nor be compared
        with a leader later.
    """,
    lesson="""
        A new replica copies only what its leader has locally, so it is in sync soon, however large the partition is.
        The history that the records would have brought along (leader epochs, and the state of idempotent producers)
        comes from the tier, where each copy of a segment has it.
    """,
    source="KIP-405, follower fetch scenario 1: new empty follower",
    has_tier=True,
)
async def empty_follower(stage: Stage) -> dict[str, Any]:
    """A is alone, and gets three more epochs; then B is added."""
    await stage.create_topic("A", local_retention_bytes=TWO_SEGMENTS)
    await stage.produce("m0", "m1", "m2")
    await _next_epoch(stage, "A")
    await stage.produce("m3", "m4")
    await _next_epoch(stage, "A")
    await stage.produce("m5", "m6")
    await _next_epoch(stage, "A")
    await stage.produce("m7")
    await stage.until(lambda: stage.finished() == [(0, 2), (3, 5)], "two segments are copied")
    await stage.until(lambda: stage.local_start("A") == 3, "A deletes the first one")
    stage.step(
        f"""A leads, and has no followers. It was restarted three times, and each time one epoch passed without a
        leader, so its epoch is {stage.epoch("A")}. Two closed segments are in the tier. Local retention has deleted
        the first one, so the local log of A starts at {stage.local_start("A")}."""
    )
    await stage.reassign("A", "B")
    await stage.until(lambda: stage.has_replica("B") and stage.end("B") >= 3, "B starts its log")
    history = stage.look("B")["epochs"]
    stage.step(
        f"""B becomes a replica. It fetches offset 0, and A answers OFFSET_MOVED_TO_TIERED_STORAGE. B asks A where
        its local log starts ({stage.local_start("A")}), reads the leader epochs of the segment before that from the
        tier ({epochs_text(history)}), and starts an empty log there."""
    )
    await stage.settle("A", "B")
    stage.step(
        f"""B fetches from offset 3 as any follower does, and gets the later epochs with the records. Its history is
        now that of A: {epochs_text(stage.look("B")["epochs"])}. B is in sync with {len(stage.values("B"))} records
        on its disk."""
    )
    await stage.kill("A")
    await stage.until_leads("B")
    found = await stage.read()
    stage.step(
        f"""A fails, and B leads. A consumer reads from offset 0: {", ".join(found)}. B serves the first three from
        the tier, and has never had them on its disk."""
    )
    return {"local_start": stage.local_start("B"), "history": history, "read": found}


@scenario(
    "kip-405-follower-behind",
    title="A follower that was away while its leader deleted what it needs next",
    summary="A follower comes back with old records, and its next one is only in the tier (KIP-405, scenario 2).",
    opening="""
        B follows A and stops. While it is away, A writes in two more epochs, copies its closed segments to the tier,
        and deletes them locally. When B comes back, its log is a correct beginning of the history, but there is a hole
        between its end and the start of what A has.
    """,
    lesson="""
        A local log must not have a hole, so the follower gives up the records that it has and starts again where the
        local log of its leader starts. That is safe, because everything before it is in the tier. The order matters: B
        first reads the history from the tier, and only then deletes its log.
    """,
    source="KIP-405, follower fetch scenario 2: out-of-sync follower catching up",
    has_tier=True,
    brokers=3,
)
async def follower_behind(stage: Stage) -> dict[str, Any]:
    """B has offsets 0 to 3 and is away."""
    await stage.create_topic("A", min_insync_replicas=1, local_retention_ms=LOCAL_MS)
    await stage.produce("m0", "m1", "m2")
    await _next_epoch(stage, "A")
    await stage.produce("m3")
    await stage.reassign("A", "B")
    await stage.until(lambda: stage.isr == ["A", "B"] and stage.end("B") == 4, "B is in sync")
    await stage.stop("B")
    await stage.produce("m4")
    await _next_epoch(stage, "A")
    await stage.produce("m5", "m6")
    await _next_epoch(stage, "A")
    await stage.produce("m7", "m8", "m9")
    await stage.until(lambda: len(stage.finished("A")) >= 2, "segments are copied")
    last = stage.look("B")["records"][-1]["epoch"]
    end = await stage.end_of_epoch("A", last)
    stage.step(
        f"""B stopped when its log ended at offset 4. A went on alone, and leads in epoch {stage.epoch("A")}; it
        still has all records locally. If B came back now, it would ask where epoch {last} of its last record ended.
        A answers {end}, which is not before the end of B, so B would truncate nothing, and go on with m4."""
    )
    await stage.sleep(LOCAL_MS / 1000 - 5)
    await stage.produce("m10", "m11")
    await stage.until(lambda: stage.local_start("A") == 9, "A deletes what it has copied")
    stage.step(
        f"""But B stays away. Local retention has deleted the segments before offset {stage.local_start("A")} on A,
        because the tier has them."""
    )
    stage.cut("A", "B")
    await stage.start("B")
    stage.step("B comes back, and has not reached A yet: it has the first four records, and needs m4 next.")
    stage.mend()
    await stage.until(lambda: stage.local_start("B") == 9, "B starts its log again")
    history = stage.look("B")["epochs"]
    stage.step(
        f"""A answers OFFSET_MOVED_TO_TIERED_STORAGE. B finds the segment before {stage.local_start("A")} in the
        tier, reads the leader epochs from it ({epochs_text(history)}), deletes its own records, and starts its log
        again at offset {stage.local_start("B")}."""
    )
    await stage.settle("A", "B")
    found = await stage.read()
    stage.step(f"B has caught up and is in sync. A consumer reads from offset 0: {', '.join(found)}.")
    return {"end_of_epoch": end, "local_start": stage.local_start("B"), "history": history, "read": found}


@scenario(
    "empty-follower-joins",
    title="An empty follower joins while the store is down, and then has to lead",
    summary="A new replica waits for the tier, takes the state of producers from it too, and recognises an old retry.",
    opening="""
        A leads, and its first segment is only in the tier. A new, empty replica on B needs the history before the local
        log of A, but the store does not answer. Later it does, B joins, and A fails at once. Then a producer with
        idempotence repeats a record that it wrote to A. B has never had that record on its disk.
    """,
    lesson="""
        A follower takes over the history as a whole or not at all: a log without its leader epochs would look complete
        after the next restart, and could not be compared with any leader. The history includes the last batches of each
        producer. Without them a new leader would take a late retry for a new record, and store it twice.
    """,
    source="KIP-405, auxiliary state of followers; docs/faults.md, M11",
    has_tier=True,
)
async def follower_joins(stage: Stage) -> dict[str, Any]:
    """A is alone; B is added while the store is down."""
    await stage.create_topic("A", min_insync_replicas=1, local_retention_bytes=TWO_SEGMENTS)
    await stage.produce("m0", "m1", "m2", producer_id=PRODUCER)
    await stage.produce("m3", "m4", "m5", "m6", "m7")
    await stage.until(lambda: stage.finished("A") == [(0, 2), (3, 5)], "the closed segments are copied")
    await stage.until(lambda: stage.local_start("A") == 3, "A deletes its first segment")
    stage.step(
        f"""A leads alone. A producer with id {PRODUCER} has written m0 to m2, and another one the rest. The local
        log of A starts at {stage.local_start("A")}."""
    )
    stage.cluster.store.fail(times=-1)
    await stage.reassign("A", "B")
    await stage.until(lambda: stage.has_event("a follower cannot be built from the tier yet; will retry"), "B retries")
    waiting = stage.look("B")
    stage.step(
        f"""The store fails, and then B joins. A answers OFFSET_MOVED_TO_TIERED_STORAGE, and B cannot read the
        history. It retries, and until then changes nothing: its log ends at {waiting["log_end_offset"]}."""
    )
    stage.cluster.store.heal()
    await stage.settle("A", "B")
    stage.step(
        f"""The store works again. B reads the history, starts its log at {stage.local_start("B")}, copies
        {len(stage.values("B"))} records, and is in sync."""
    )
    await stage.kill("A")
    await stage.until_leads("B")
    again = await stage.produce("m2", producer_id=PRODUCER, sequence=2)
    found = await stage.read()
    stage.step(
        f"""A fails, and B leads. The producer has lost the answer for m2, and repeats it with the same sequence
        number. B knows from the tier that it is a duplicate: it answers offset {again.offset}, and appends nothing.
        A consumer reads {", ".join(found)}: each record once."""
    )
    return {"end_while_waiting": waiting["log_end_offset"], "read": found, "retry": again.offset, "end": stage.end("B")}


@scenario(
    "leader-changes-in-mid-copy",
    title="The leader changes in the middle of a copy to the tier",
    summary="A broker stops leading while it copies a segment, and the new leader has to copy it, without a hole.",
    opening="""
        Only the leader of a partition copies its segments. A copy has three parts: a record in the metadata that it
        begins, the bytes, and a record that it is finished. Leadership moves to B after the first part. The bytes of A
        may be whole, or half, or nothing, and A no longer has the right to say.
    """,
    lesson="""
        Only the last record makes a copy count. Before it, readers do not see the copy, and no broker deletes its local
        segment. So the new leader needs to know nothing about the attempt of the old one: it looks for the end of what
        is finished on its line of epochs, and goes on from there with copies that have ids of their own. What is left
        of the attempt is deleted.
    """,
    source="KIP-405, leader changes during a copy; docs/faults.md, M9",
    has_tier=True,
)
async def mid_copy(stage: Stage) -> dict[str, Any]:
    """A copies slowly, and B leads then."""
    await stage.create_topic("A", "B", min_insync_replicas=1, local_retention_bytes=TWO_SEGMENTS)
    stage.cluster.store.slow(SLOW_MS)
    await stage.produce("m0", "m1", "m2", "m3")
    await stage.until(lambda: stage.segments("A") and not stage.finished("A"), "A begins a copy")
    await stage.settle()
    attempts = [one.remote_log_segment_id for one in stage.segments("A")]
    stage.step(
        """A leads, B follows. A has closed its first segment and begins to copy it, but the store is slow. The
        metadata say that the copy has started, and nothing more."""
    )
    await stage.move_leadership("B", "A")
    stage.step(f"Leadership moves to B, in epoch {stage.epoch('B')}. The copy of A is still under way.")
    stage.cluster.store.slow(0)
    await stage.until(lambda: stage.finished("B") == [(0, 2)], "B copies the segment")
    await stage.until(
        lambda: not any(one.remote_log_segment_id in attempts for one in stage.segments("B")), "the attempt is deleted"
    )
    stage.step(
        f"""A notices that it no longer leads, and deletes what it has stored. B finds nothing finished on its line
        of epochs, and copies the segment itself. The tier has {len(stage.segments("B"))} copy of it."""
    )
    await stage.produce("m4", "m5", "m6", "m7", "m8", "m9")
    await stage.until(lambda: stage.finished("B") == [(0, 2), (3, 5), (6, 8)], "B copies all closed segments")
    await stage.until(lambda: stage.local_start("B") >= 3, "B deletes its first segment locally")
    found = await stage.read()
    objects = {path.rpartition("/")[2].split(".")[0] for path in stage.cluster.store.objects()}
    stage.step(
        f"""B goes on, copies every closed segment once, and deletes its first one locally. A consumer reads from
        offset 0: {", ".join(found)}. No object is left of the attempt of A: the store has {len(objects)} segments."""
    )
    return {"read": found, "copies": stage.finished("B"), "objects": len(objects)}
