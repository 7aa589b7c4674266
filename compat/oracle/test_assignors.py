"""The assignors against Kafka's own classes, on generated groups: the same partitions for every member.

Kafka iterates over topics in the order of hash codes; the broker gets the topics in that order. Each case is repeated
with the result as the current assignment, after members have joined, left and changed their topics.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from uuid import UUID

from compat.kafka.tools import run_tool
from kbroker.coordinator.consumer.assignors import Assignment, Subscribed, Subscriber
from kbroker.coordinator.consumer.targets import ASSIGNORS
from kbroker.testing.draws import Draws

CASES: Final = 400
ROUNDS: Final = 4
Group = dict[str, Subscriber]


def topic_id(number: int) -> UUID:
    return UUID(int=(number * 0x9E3779B97F4A7C15 & (1 << 64) - 1) << 64 | number)


def number_of(topic: UUID) -> int:
    return topic.int & (1 << 64) - 1


def changed(draws: Draws, group: Group, topics: list[UUID], *, is_homogeneous: bool, named: int) -> Group:
    """The group after members have joined and left, with other topics."""
    same = tuple(topic for topic in topics if draws.chance(0.8)) or (topics[0],)
    kept = {name: member for name, member in group.items() if draws.chance(0.8)}
    for number in range(draws.below(5) + (not kept)):
        instance_id = f"static-{draws.below(1000)}-{number}" if draws.chance(0.2) else None
        kept[f"member-{named}-{draws.below(10_000)}"] = Subscriber(instance_id, (), {})
    return {
        name: member._replace(
            topics=same if is_homogeneous else tuple(topic for topic in topics if draws.chance(0.5)) or (topics[0],)
        )
        for name, member in kept.items()
    }


def as_line(name: str, counts: dict[UUID, int], group: Group, *, is_homogeneous: bool) -> str:
    members = (
        "/".join(
            (
                member_id,
                member.instance_id or "",
                ",".join(str(number_of(topic)) for topic in member.topics),
                ";".join(f"{number_of(topic)}={','.join(map(str, sorted(of)))}" for topic, of in member.target.items()),
            )
        )
        for member_id, member in group.items()
    )
    kind = "HOMOGENEOUS" if is_homogeneous else "HETEROGENEOUS"
    return "|".join((name, kind, ";".join(f"{number_of(topic)}={count}" for topic, count in counts.items()), *members))


def as_assignment(text: str) -> Assignment:
    found: Assignment = {}
    for place in filter(None, text.split(",")):
        topic, _, partition = place.partition(":")
        found.setdefault(topic_id(int(topic)), set()).add(int(partition))
    return found


def ask_kafka(lines: list[str]) -> list[tuple[list[UUID], dict[str, Assignment]]]:
    done = run_tool(str(Path(__file__).with_name("Assignors.java")), input="\n".join(lines) + "\n", timeout_s=300)
    assert done.returncode == 0, done.stderr
    answers = []
    for line in done.stdout.splitlines():
        order, *members = line.split("|")
        assigned = {name: as_assignment(places) for name, _, places in (one.partition("/") for one in members)}
        answers.append(([topic_id(int(number)) for number in filter(None, order.split(","))], assigned))
    return answers


def test_assignors_give_every_member_what_kafka_gives() -> None:
    draws = Draws("assignors", 0)
    counts = [{topic_id(number): draws.below(12) for number in range(1, 2 + draws.below(8))} for _ in range(CASES)]
    kinds = [(draws.choice(list(ASSIGNORS)), draws.chance(0.4)) for _ in range(CASES)]
    groups: list[Group] = [{} for _ in range(CASES)]
    compared = 0
    for named in range(ROUNDS):
        groups = [
            changed(draws, group, list(of), is_homogeneous=same, named=named)
            for group, of, (_, same) in zip(groups, counts, kinds, strict=True)
        ]
        cases = list(zip(kinds, counts, groups, strict=True))
        answers = ask_kafka([as_line(name, of, group, is_homogeneous=same) for (name, same), of, group in cases])
        assert len(answers) == CASES
        for number, (((name, same), of, group), (order, wanted)) in enumerate(zip(cases, answers, strict=True)):
            members = {
                member_id: member._replace(topics=tuple(order)) if same else member
                for member_id, member in group.items()
            }
            found = ASSIGNORS[name](Subscribed(members, of, same))
            assert {id: of for id, of in found.items() if of} == {id: of for id, of in wanted.items() if of}, (
                f"case {number} of round {named}: {name}, {members}"
            )
            compared += len(found)
            groups[number] = {
                member_id: member._replace(
                    target={topic: frozenset(of) for topic, of in found.get(member_id, {}).items()}
                )
                for member_id, member in group.items()
            }
    assert compared > CASES, "hardly any group had members"
