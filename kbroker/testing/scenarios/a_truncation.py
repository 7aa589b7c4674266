"""How a follower finds the end of its log after a change of the leader: KIP-101 and KIP-279."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.testing.scenarios import OldRule, scenario
from kbroker.testing.scenarios._old_rules import COMPARE_IN_ONE_STEP, TRUNCATE_BY_HIGH_WATERMARK

if TYPE_CHECKING:
    from kbroker.testing.scenarios._stage import Stage

CHECKPOINTED_S: Final = 6
"""High watermarks are written to the disk every 5 seconds."""

BY_HIGH_WATERMARK: Final = OldRule(
    TRUNCATE_BY_HIGH_WATERMARK,
    "Before Kafka 0.11, a follower of a new leader, or one that restarts, truncates its log to its own high watermark.",
    "Since KIP-101, a follower keeps its log, names the leader epoch of its last record, and truncates only where the "
    "leader's history of epochs differs.",
)


@scenario(
    "kip-101-record-lost",
    title="Truncation to the high watermark loses an acknowledged record",
    summary="A follower restarts, its leader fails, and a record that both had is gone (KIP-101, scenario 1).",
    opening="""
        Both replicas of a partition have the record m2, and it is acknowledged with acks=all. But a follower learns of
        a new high watermark (HW) only with the next answer of its leader, one round trip after it has the record. If
        the follower restarts in that moment and the leader fails after it, everything depends on how the follower
        chooses the end of its log. (Today a controller removes a broker that restarts from the in-sync replicas; in
        2016 it did not. So the topic allows an unclean election here, as was the default then.)
    """,
    lesson="""
        The high watermark of a follower is old by one round trip, so it says what is certainly committed, and not what
        may be thrown away. Leader epochs are written with the records themselves. A log that is cut only where the
        epochs differ loses nothing that both replicas have.
    """,
    source="KIP-101, scenario 1: high watermark truncation followed by immediate leader election",
    old_rule=BY_HIGH_WATERMARK,
)
async def record_lost(stage: Stage) -> dict[str, Any]:
    """B leads, A follows: the letters of KIP-101."""
    await stage.create_topic("B", "A", min_insync_replicas=1, unclean_leader_election_enable="true")
    await stage.produce("m1")
    await stage.settle()
    await stage.sleep(CHECKPOINTED_S)
    stage.step("B leads, A follows. The producer has written m1 with acks=all, and both know that it is committed.")
    write = stage.send("m2")
    await stage.until(lambda: stage.end("A") == 2, "A has m2")
    stage.cut("B", "A")
    await stage.until(lambda: write.is_acknowledged, "m2 is acknowledged")
    stage.step(
        f"""The producer writes m2 with acks=all. A fetches it, and its next Fetch tells B so: B raises its HW to
        {stage.high_watermark("B")} and acknowledges m2. The answer that would tell A is lost: its HW is still
        {stage.high_watermark("A")}."""
    )
    await stage.kill("A")
    await stage.start("A")
    await stage.sleep(0.1)
    stage.step(
        f"A restarts with HW {stage.high_watermark('A')} from its checkpoint. "
        + (
            "As a follower it truncates its log to that, before it asks B anything: m2 exists only on B."
            if stage.end("A") < 2
            else "It keeps m2, and is going to ask B where the epoch of m2 ended. But it cannot reach B."
        )
    )
    await stage.kill("B")
    stage.mend()
    await stage.until_leads("A")
    stage.step(
        f"B fails before A has fetched from it again. The controller elects A, in leader epoch {stage.epoch('A')}; its "
        f"log ends at {stage.end('A')}."
    )
    await stage.start("B")
    await stage.settle("A", "B")
    found = await stage.read()
    stage.step(
        f"B comes back and follows A: its log ends at {stage.end('B')}. A consumer reads {', '.join(found)}. "
        + ("The acknowledged record m2 is lost on both replicas." if "m2" not in found else "Nothing is lost.")
    )
    return _facts(found)


@scenario(
    "kip-101-record-lost-in-sync",
    title="The same loss with three replicas, all in sync, and without a restart",
    summary="A new leader is elected, its follower truncates, and that follower is elected next (KIP-101, scenario 1).",
    opening="""
        Three replicas have the record m2, all are in sync, and it is acknowledged with acks=all. Then two leaders fail
        one after the other, and every election is clean. Two failures must not lose a record that three replicas have.
        But A and B have not heard yet that m2 is committed.
    """,
    lesson="""
        It takes no restart and no unclean election: the rule alone throws the record away. In the moment in which a
        follower truncates, it is still in the ISR, so the controller believes that it has everything that was
        committed.
    """,
    source="KIP-101, scenario 1, as it happens when a follower gets a new leader",
    old_rule=BY_HIGH_WATERMARK,
    brokers=3,
)
async def record_lost_in_sync(stage: Stage) -> dict[str, Any]:
    """C leads, then A, then B."""
    await stage.create_topic("C", "A", "B", min_insync_replicas=1)
    await stage.produce("m1")
    await stage.settle()
    stage.step("C leads, A and B follow, and all know that m1 is committed.")
    write = stage.send("m2")
    await stage.until(lambda: stage.end("A") == stage.end("B") == 2, "A and B have m2")
    stage.cut("C", "A")
    stage.cut("C", "B")
    await stage.until(lambda: write.is_acknowledged, "m2 is acknowledged")
    stage.step(
        f"""All three have m2, and C acknowledges it. The answers that would tell A and B do not arrive: their HW is
        still {stage.high_watermark("A")}."""
    )
    stage.cut("A", "B")
    await stage.kill("C")
    await stage.until_leads("A")
    await stage.until(lambda: stage.epoch("B") == stage.epoch("A"), "B learns of the election")
    await stage.sleep(0.1)
    stage.step(
        f"C fails. The controller elects A in epoch {stage.epoch('A')}; the ISR is {' '.join(stage.isr)}. B has a new "
        + (
            f"leader, truncates its log to its HW, {stage.high_watermark('B')}, and is going to fetch m2 again. But"
            " what A sends does not arrive."
            if stage.end("B") < 2
            else "leader, keeps m2, and is going to ask whether its history differs. But what A sends does not arrive."
        )
    )
    await stage.kill("A")
    stage.mend()
    await stage.until_leads("B")
    stage.step(f"A fails too. B is in sync, so its election is clean: it leads in epoch {stage.epoch('B')}.")
    await stage.start("A")
    await stage.start("C")
    await stage.settle("A", "B", "C")
    found = await stage.read()
    stage.step(
        f"A and C come back and follow B. A consumer reads {', '.join(found)}. "
        + (
            "All three had m2, and all three have thrown it away."
            if "m2" not in found
            else "Two failures have lost nothing."
        )
    )
    return _facts(found)


@scenario(
    "kip-101-logs-diverge",
    title="Truncation to the high watermark leaves two records at one offset",
    summary="Both replicas fail, and come back with different records at the same offset (KIP-101, scenario 2).",
    opening="""
        Both replicas fail at once, and B, which had not yet flushed m2 to its disk, loses it. B comes back first,
        leads, and writes m3 at the offset that m2 had. Then A returns with m2 at that offset. Its high watermark (HW)
        says that m2 is committed, so a rule that looks only at the HW sees nothing to truncate.
    """,
    lesson="""
        No rule can save m2: acks=all means that all in-sync replicas have a record, not that it is on their disks, so
        the loss of power of all of them at once may lose it. But the replicas have to agree on what is left. An offset
        alone does not identify a record. The offset and the leader epoch do.
    """,
    source="KIP-101, scenario 2: replica divergence on restart after multiple hard failures",
    old_rule=BY_HIGH_WATERMARK,
)
async def logs_diverge(stage: Stage) -> dict[str, Any]:
    """A leads, B follows and loses what was not flushed."""
    await stage.create_topic("A", "B", min_insync_replicas=1)
    await stage.produce("m1")
    await stage.settle()
    await stage.stop("B")
    await stage.start("B")
    await stage.until(lambda: stage.isr == ["A", "B"], "B is in sync again")
    await stage.produce("m2")
    await stage.sleep(CHECKPOINTED_S)
    stage.step(
        f"""A leads, B follows. m1 is on both disks, because B was cleanly restarted after it. Then m2 was written
        with acks=all: both replicas have it, with HW {stage.high_watermark("A")}, but B has it only in its memory."""
    )
    await stage.kill("A")
    await stage.until(lambda: stage.leader == "B", "B is elected")
    await stage.kill("B", power=True)
    stage.step("A fails, and then B loses its power: the last in-sync replica. The disk of B has no m2.")
    await stage.start("B")
    await stage.until_leads("B")
    await stage.produce("m3")
    stage.step(
        f"B comes back first. As the last in-sync replica it leads, in epoch {stage.epoch('B')}. The producer writes "
        f"m3: it gets offset {stage.end('B') - 1}, which was that of m2."
    )
    await stage.start("A")
    await stage.until(lambda: stage.isr == ["A", "B"], "A is in sync again")
    await stage.produce("m4")
    await stage.settle()
    left, right = stage.values("A"), stage.values("B")
    stage.step(
        "A comes back as a follower of B. "
        + (
            f"It truncates to its HW, which is the end of its log: nothing changes. After m4 A has {', '.join(left)}, "
            f"and B has {', '.join(right)}. Both say that all of it is committed, and neither will ever notice."
            if left != right
            else "It says that its last record has epoch 0. B answers that epoch 0 ended at offset 1. So A drops m2 and"
            f" fetches m3. After m4 both have {', '.join(left)}."
        )
    )
    return {"A": left, "B": right, "agree": left == right}


@scenario(
    "kip-279-three-epochs",
    title="After three leaders in a row, one comparison of epochs is not enough",
    summary="Leadership moves from A to B and back before they copy from each other, and both wrote (KIP-279).",
    opening="""
        Leadership moves fast: A leads in epoch 0, B in epoch 1, A again in epoch 2, and each writes a record that the
        other one never gets. Then B follows A. The last record of B has epoch 1, and A has no record of that epoch. So
        "where did epoch 1 end?" has no answer on A, and B must not take the answer to another question for it.
    """,
    lesson="""
        A leader that does not know an epoch answers with the largest epoch below it that it does know, and names that
        epoch. A follower without that epoch steps back to its own largest one below and asks again, so both walk back
        one epoch at a time until they stand on common ground.
    """,
    source="KIP-279: log divergence between leader and follower after fast leader fail over",
    old_rule=OldRule(
        COMPARE_IN_ONE_STEP,
        "KIP-101 alone: a follower truncates once, to the end offset that the leader answers, without a look at the "
        "epoch that the answer is about.",
        "Since KIP-279, the answer names its epoch, and the follower repeats the comparison until both have the same "
        "one.",
    ),
)
async def three_epochs(stage: Stage) -> dict[str, Any]:
    """A, B and A lead in turn; both stay in the ISR, and no election is unclean."""
    await stage.create_topic("A", "B", min_insync_replicas=1)
    await stage.produce("m1")
    await stage.settle()
    stage.step("A leads in epoch 0, B follows, and both have m1.")
    stage.cut_both("A", "B")
    await stage.produce("m2", "m3", to="A", acks=1)
    stage.step(
        "The link between A and B fails. A appends m2 and m3, and acknowledges them with acks=1. B cannot fetch them; "
        "it is still in the ISR, because replica.lag.time.max.ms is not over."
    )
    await stage.move_leadership("B", "A")
    await stage.produce("m4", to="B", acks=1)
    stage.step(
        f"The controller moves leadership to B, the new preferred replica: epoch {stage.epoch('B')} begins at offset "
        f"{stage.end('B') - 1} with m4. A cannot fetch from B, so it still has m2 and m3."
    )
    await stage.move_leadership("A", "B")
    await stage.kill("B")
    await stage.produce("m5", to="A", acks=1)
    stage.step(
        f"Leadership moves back to A in epoch {stage.epoch('A')}, and B fails. A appends m5 after m3, at offset "
        f"{stage.end('A') - 1}."
    )
    stage.mend()
    await stage.start("B")
    await stage.until(lambda: stage.isr == ["A", "B"], "B is in sync")
    await stage.produce("m6")
    await stage.settle()
    left, right = stage.values("A"), stage.values("B")
    stage.step(
        "B comes back, follows A, and names epoch 1 of m4. A answers that its largest epoch up to that is epoch 0, "
        "which ended at offset 3. "
        + (
            f"B takes the 3 for the end of its own log, which ends at 2: it truncates nothing. Then A has "
            f"{', '.join(left)} and B has {', '.join(right)}."
            if left != right
            else f"B has epoch 0 too, where it ended at offset 1: it drops m4, and fetches from there. Both have "
            f"{', '.join(left)}."
        )
    )
    return {"A": left, "B": right, "agree": left == right}


def _facts(read: list[str]) -> dict[str, Any]:
    acknowledged = ["m1", "m2"]
    return {"acknowledged": acknowledged, "read": read, "lost": [one for one in acknowledged if one not in read]}
