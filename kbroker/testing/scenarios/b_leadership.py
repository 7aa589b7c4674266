"""What a leader may acknowledge after another one was elected, and while it is the only in-sync replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.testing.scenarios import OldRule, scenario
from kbroker.testing.scenarios._old_rules import COMMIT_BELOW_MIN_ISR

if TYPE_CHECKING:
    from kbroker.testing.scenarios._stage import Stage

LAG_MS: Final = 5_000
WRITE_MS: Final = 4_000
WAIT_MS: Final = 15_000


@scenario(
    "zombie-leader",
    title="A leader that was replaced, and does not know it",
    summary="A leader is cut off from all brokers but not from its clients, and goes on as if it still led.",
    opening="""
        A leads, and loses its links to the other brokers and to the controller, but some clients still reach it. The
        controller elects another leader. A cannot learn that, so for a while two brokers say that they lead the same
        partition. The producer that talks to A writes with acks=1 and with acks=all.
    """,
    lesson="""
        Two leaders are harmless as long as only one can commit. The old one cannot raise its high watermark, because
        that takes the fetches of the other in-sync replicas, and it cannot shrink the ISR, because that takes the
        controller. So acks=all is safe. acks=1 asks only one broker, and it may be the wrong one: what a zombie
        acknowledges that way is lost.
    """,
    source="KIP-101 and KIP-320: leader epochs fence replaced leaders",
    brokers=3,
)
async def zombie_leader(stage: Stage) -> dict[str, Any]:
    """A leads and is isolated."""
    await stage.create_topic("A", "B", "C", min_insync_replicas=2)
    await stage.produce("m1")
    await stage.settle()
    stage.step("A leads in epoch 0, B and C follow. m1 is committed on all three.")
    for other in ("B", "C", "controller"):
        stage.cut_both("A", other)
    one = await stage.produce("z1", to="A", acks=1)
    both = stage.send("z2", to="A", timeout_ms=WRITE_MS)
    await stage.sleep(0.1)
    stage.step(
        f"A is cut off from B, C and the controller. A producer that still reaches it writes z1 with acks=1, which is "
        f"acknowledged, and z2 with acks=all, which waits. The log of A ends at {stage.end('A')}; its HW stays at "
        f"{stage.high_watermark('A')}, because no follower fetches."
    )
    await stage.until(lambda: both.is_over, "z2 is answered")
    await stage.until(lambda: stage.leader not in (None, "A"), "another broker is elected")
    new = stage.leader
    assert new is not None
    await stage.until_leads(new)
    await stage.produce("m2", to=new)
    seen = await stage.read("A")
    stage.step(
        f"z2 timed out: it is not acknowledged. The controller has no heartbeats from A, fences it, and elects {new} "
        f"in epoch {stage.epoch(new)}. {new} commits m2 with acks=all, at the offset that z1 has on A. A is a zombie: "
        f"it still believes that it leads in epoch {stage.epoch('A')}. A consumer that asks A reads only "
        f"{', '.join(seen)}."
    )
    stage.mend()
    await stage.settle("A", "B", "C")
    found = await stage.read()
    stage.step(
        f"The links work again. A learns of epoch {stage.epoch('A')}, follows {new}, drops z1 and z2, and fetches m2. "
        f"A consumer reads {', '.join(found)}. z1 is lost although A acknowledged it; z2 is lost too, but it was "
        "never acknowledged."
    )
    return {"z1": one.is_acknowledged, "z2": both.code, "read": found, "leader": new}


@scenario(
    "isr-shrinks",
    title="Fewer in-sync replicas than min.insync.replicas",
    summary="A leader is left alone: which records it refuses, which it keeps for itself, and who may read them.",
    opening="""
        min.insync.replicas=2, and there are two replicas. The follower gets no more answers. Until it leaves the ISR,
        the leader appends records and waits for it; after that it refuses them. So a producer gets one error for a
        record that is in the log, and another one for a record that is not.
    """,
    lesson="""
        NOT_ENOUGH_REPLICAS (19) means that the record was not written: retry. NOT_ENOUGH_REPLICAS_AFTER_APPEND (20) and
        REQUEST_TIMED_OUT (7) mean that it is in the log of the leader and may yet be committed, so a retry may write it
        twice; an idempotent producer retries without that danger. Since KIP-966 the high watermark does not rise while
        the ISR is smaller than min.insync.replicas, so no consumer reads a record that a single failure may still lose.
    """,
    source="min.insync.replicas; KIP-966 for the high watermark",
    settings={"replica.lag.time.max.ms": LAG_MS},
    old_rule=OldRule(
        COMMIT_BELOW_MIN_ISR,
        "Before Kafka 4.0, the high watermark rises when all members of the ISR have a record, however few they are.",
        "Since KIP-966, the high watermark stays while the ISR is smaller than min.insync.replicas.",
    ),
)
async def isr_shrinks(stage: Stage) -> dict[str, Any]:
    """B gets no answers to its fetches."""
    await stage.create_topic("A", "B", min_insync_replicas=2)
    await stage.produce("m1")
    await stage.settle()
    stage.step("A leads, B follows, and both are in sync: m1 is committed.")
    stage.cut("A", "B")
    after = stage.send("m2", timeout_ms=WAIT_MS)
    await stage.until(lambda: stage.end("A") == 2, "A has appended m2")
    stage.step(
        f"""What A sends to B no longer arrives. The producer writes m2 with acks=all. The ISR still has two members,
        so A appends m2 and waits for B. Its HW is {stage.high_watermark("A")}, and its log ends at {stage.end("A")}."""
    )
    await stage.until(lambda: stage.isr == ["A"], "B leaves the ISR")
    await stage.until(lambda: after.is_over, "m2 is answered")
    seen = await stage.read()
    stage.step(
        f"B has not caught up for replica.lag.time.max.ms ({LAG_MS // 1000} s), so A removes it from the ISR, which is "
        "now smaller than min.insync.replicas. "
        + (
            "The only member of the ISR, A, has m2. So the HW rises over it, a consumer may read it, and the "
            f"producer gets error {after.code_text}."
            if after.code is not None and "m2" in seen
            else f"The HW stays at {stage.high_watermark('A')}, so m2 is not committed and no consumer reads it. "
            f"Nothing answers the producer until its timeout of {WAIT_MS // 1000} s is over: error {after.code_text}."
        )
    )
    before = stage.send("m3")
    await stage.until(lambda: before.is_over, "m3 is answered")
    alone = await stage.produce("m4", acks=1)
    seen = await stage.read()
    stage.step(
        f"""m3 with acks=all gets error {before.code_text} at once and is not written. m4 with acks=1 is written and
        acknowledged; the log ends at {stage.end("A")}. The HW is {stage.high_watermark("A")}: a consumer reads
        {", ".join(seen)}. Only A has what comes after m1."""
    )
    stage.mend()
    await stage.settle("A", "B")
    found = await stage.read()
    stage.step(
        f"""B fetches again, catches up and joins the ISR. The HW is {stage.high_watermark("A")}. A consumer reads
        {", ".join(found)}: also m2, which was answered with an error."""
    )
    return {
        "m2": after.code,
        "m3": before.code,
        "m4_is_acknowledged": alone.is_acknowledged,
        "read_from_a_leader_alone": seen,
        "read": found,
    }
