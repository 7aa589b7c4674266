"""Decisions and stored state of the jobs, without Spark: commits of an export, plans of a replay, gaps of a tier."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.client.operations import Committed
from kbroker.spark.errors import ExportConflict, ReplayConflict
from kbroker.spark.jobs.coverage import check_coverage
from kbroker.spark.jobs.export_log import (
    Commit,
    ExportedFile,
    Identity,
    Range,
    commit_number,
    next_batch,
    parse_commit,
    refuse_another,
)
from kbroker.spark.jobs.replay_plan import ReplayPlan, parse_plan
from kbroker.spark.jobs.replay_plan import refuse_another as refuse_another_plan
from tests.spark.test_plan import segment, state

SCHEMA = {"type": "struct", "fields": [{"name": "value", "type": "binary", "nullable": True}]}
IDENTITY = Identity("orders", "id1", SCHEMA, {"startingOffsets": "earliest"})
OFFSETS = st.integers(0, 1 << 40)


# --- commits of an export ---


def test_a_commit_round_trips() -> None:
    files = [ExportedFile("_kbroker_staging/1/data/date=2026-01-31/partition=0/x", "date=2026-01-31/partition=0/y", 9)]
    commit = Commit(3, IDENTITY, {0: Range(5, 9), 7: Range(0, 0)}, files, {0: 3, 7: 0}, {0: 1, 7: 0}, 1_000)
    assert parse_commit(commit.to_json(), path="here") == commit
    assert commit_number(commit.name) == 3
    assert commit.ends == {0: 9, 7: 0}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 2}', '{"version": 1, "number": 0}'])
def test_an_invalid_commit_is_reported_with_its_path(text: str) -> None:
    with pytest.raises(ExportConflict, match=r"in out/0\.json: this commit cannot be read.*Remedy: "):
        parse_commit(text, path="out/0.json")


def other_schema(**more: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": "value", "type": "binary", "nullable": True, **more}]}


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (replace(IDENTITY, topic="invoices"), "an export of the topic 'orders'"),
        (
            replace(IDENTITY, topic_id="another"),
            "created again since the last export: its id is another, it was id1",
        ),
        (replace(IDENTITY, options={}), 'made with startingOffsets = "earliest", this one would use null'),
        (replace(IDENTITY, schema=other_schema(type="string")), "value was binary and is string"),
        (replace(IDENTITY, schema=other_schema(nullable=False)), "value was binary and is binary not null"),
        (replace(IDENTITY, schema=other_schema(name="v")), "value is missing; v is new"),
    ],
)
def test_a_batch_of_another_export_is_refused(wanted: Identity, said: str) -> None:
    with pytest.raises(ExportConflict, match="Remedy: ") as error:
        refuse_another(IDENTITY, wanted, output="out")
    assert said in str(error.value)


def test_the_same_export_continues() -> None:
    refuse_another(IDENTITY, replace(IDENTITY), output="out")
    refuse_another(replace(IDENTITY, topic_id=None), IDENTITY, output="out")


@given(
    st.dictionaries(st.integers(0, 5), st.tuples(OFFSETS, st.integers(0, 1_000)), min_size=1),
    st.none() | st.integers(1, 2_000),
)
def test_batches_tile_the_offsets_and_starve_no_partition(found: dict[int, tuple[int, int]], most: int | None) -> None:
    begins = {at: start for at, (start, _) in found.items()}
    ends = {at: start + count for at, (start, count) in found.items()}
    for _ in range(20_000):
        batch = next_batch(begins, ends, max_records=most)
        assert {at: each.start for at, each in batch.items()} == begins
        sizes = {at: each.end - each.start for at, each in batch.items()}
        assert all((sizes[at] > 0) == (begins[at] < ends[at]) for at in begins)
        assert all(each.end <= ends[at] for at, each in batch.items())
        if most is not None:
            assert sum(sizes.values()) <= most + len(begins)
        if not any(sizes.values()):
            break
        begins = {at: each.end for at, each in batch.items()}
    assert begins == ends


# --- plans of a replay ---

PLAN = ReplayPlan("job", "copy", "idOfCopy", "the topic orders", False, {0: Range(1, 5), 4: Range(0, 9)}, {0: 7, 1: 0})


def test_a_plan_round_trips_through_committed_offsets() -> None:
    assert parse_plan("job", "copy", PLAN.offsets()) == PLAN
    assert parse_plan("job", "copy", replace(PLAN, is_done=True).offsets()).is_done


def test_offsets_of_another_group_are_refused() -> None:
    for text in ("", "{}", "null", '{"replay": 2}'):
        with pytest.raises(ReplayConflict, match="copy-0: the group 'job' has committed an offset that is not of"):
            parse_plan("job", "copy", {0: Committed(3, text)})
    mixed = PLAN.offsets() | {1: replace(PLAN, source="another").offsets()[1]}
    with pytest.raises(ReplayConflict, match="belong to different replays"):
        parse_plan("job", "copy", mixed)


def test_too_many_ranges_are_refused_before_writing() -> None:
    many = replace(PLAN, ranges={at: Range(1 << 40, 1 << 41) for at in range(300)})
    with pytest.raises(ReplayConflict, match="300 partitions do not fit into the offsets of 2"):
        many.offsets()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"source": "the topic invoices"}, "has the source the topic orders, not the topic invoices"),
        ({"is_by_key": True}, "was started to the same partitions"),
        ({"target_id": "another"}, "created again since the replay 'job' began: its id was idOfCopy, it is another"),
        ({"partitions": {0, 1, 2}}, "had 2 partitions when the replay 'job' began, and has 3 now"),
    ],
)
def test_another_replay_under_the_same_job_id_is_refused(more: dict[str, Any], said: str) -> None:
    same: dict[str, Any] = {
        "source": PLAN.source, "is_by_key": False, "target_id": PLAN.target_id, "partitions": {0, 1},
    }  # fmt: skip
    refuse_another_plan(PLAN, **same)
    with pytest.raises(ReplayConflict, match="choose another --job-id") as error:
        refuse_another_plan(PLAN, **(same | more))
    assert said in str(error.value)


# --- gaps of a tier ---


def problems(*segments: Any, local: int | None = 100, **more: Any) -> list[tuple[str, bool]]:
    return [(each.problem, each.is_note) for each in check_coverage(state(*segments, **more), local)]


def test_a_history_without_gaps_has_no_findings() -> None:
    assert problems(segment(0, 40), segment(40, 100)) == []
    assert problems(segment(0, 40), segment(40, 60), local=60) == []
    assert problems(segment(0, 40), segment(40, 60), local=None) == []


def test_lost_offsets_are_a_gap_and_local_ones_a_note() -> None:
    assert problems(segment(0, 40), segment(50, 100)) == [("gap", False)]
    assert problems(segment(0, 40), segment(50, 100), local=None) == [("gap", False)]
    assert problems(segment(10, 100)) == [("gap", False)]
    assert problems(segment(0, 40), segment(50, 100), local=30) == [("local-only", True)]
    assert problems(segment(0, 40), segment(60, 100), local=50) == [("gap", False), ("local-only", True)]
    assert problems(segment(0, 40), local=60) == [("gap", False)]


def test_a_gap_names_its_offsets() -> None:
    (found,) = check_coverage(state(segment(0, 40), segment(50, 100)), 100)
    assert found.line().startswith("orders-0: the offsets 40 to 49, before ")


def test_overlaps_and_other_histories_are_notes() -> None:
    assert problems(segment(0, 60, number=1), segment(40, 100, number=2)) == [("overlap", True)]
    stranger = segment(0, 50, ((3, 0),), number=3)
    assert problems(segment(0, 100, number=1), stranger) == [("other-lineage", True)]
    assert UUID(int=3) == stranger.remote_log_segment_id.id
