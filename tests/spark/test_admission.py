from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.spark.admission import Pace, admitted
from kbroker.spark.positions import MalformedPositions, from_document, to_document

PARTITIONS = st.dictionaries(
    st.tuples(st.sampled_from(("a", "b")), st.integers(0, 3)),
    st.tuples(st.integers(0, 1000), st.integers(0, 10_000)),
    min_size=1,
)


@given(PARTITIONS, st.integers(1, 20_000))
def test_a_batch_shares_its_limit_and_starves_no_partition(
    waiting: dict[tuple[str, int], tuple[int, int]], most: int
) -> None:
    start = {each: begin for each, (begin, _) in waiting.items()}
    end = {each: begin + count for each, (begin, count) in waiting.items()}
    found = admitted(start, end, most=most)
    total = sum(count for _, count in waiting.values())
    for each, (begin, count) in waiting.items():
        share, taken = most * count / max(total, most), found[each] - begin
        assert max(0, share - 1) < taken <= min(count, max(1, share)) if count else taken == 0


def test_without_a_limit_a_batch_has_all_offsets() -> None:
    assert admitted({("a", 0): 5}, {("a", 0): 5000}, most=None) == {("a", 0): 5000}


def test_a_batch_waits_for_the_minimum_or_the_maximum_delay() -> None:
    pace = Pace(least=10, max_delay_ms=1000)
    assert not pace.holds(3, now_ms=0)  # the first one is never held back
    assert pace.holds(9, now_ms=500)
    assert not pace.holds(10, now_ms=600)
    assert pace.holds(9, now_ms=1599)
    assert not pace.holds(9, now_ms=1600)


def test_without_a_minimum_no_batch_waits() -> None:
    pace = Pace(least=None, max_delay_ms=1000)
    assert not pace.holds(1, now_ms=0)
    assert not pace.holds(1, now_ms=0)


def test_offsets_survive_a_checkpoint() -> None:
    offsets, ids = {("a", 0): 5, ("a", 10): 7, ("b", 2): 0}, {"a": UUID(int=1), "b": UUID(int=2), "gone": UUID(int=3)}
    document = to_document(offsets, ids)
    assert document["a"] == {"0": 5, "10": 7}
    assert from_document(document) == (offsets, {"a": UUID(int=1), "b": UUID(int=2)})


@pytest.mark.parametrize("document", [{"a": 5}, {"a": {"0": "x"}}, {"a": {"0": 1}, "topic ids": {"a": "no id"}}])
def test_a_checkpoint_of_another_source_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(MalformedPositions):
        from_document(document)
