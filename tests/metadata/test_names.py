"""Legal and colliding topic names, with Kafka's messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.metadata.names import collision_key, is_internal, topic_name_fault


@pytest.mark.parametrize("name", ["a", "A-z_0.9", "x" * 249, "...", "-", "_", "__consumer_offsets"])
def test_legal_names_have_no_fault(name: str) -> None:
    assert topic_name_fault(name) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("x" * 250, "is longer than the max allowed length 249"),
        ("../x", "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("a\x00b", "contains one or more characters"),
        ("a b", "contains one or more characters"),
        ("a\n", "contains one or more characters"),
        ("ä", "contains one or more characters"),
        ("\u0661", "contains one or more characters"),  # a digit, but not an ASCII one
    ],
)
def test_x5_illegal_names_are_refused_in_kafkas_words(name: str, text: str) -> None:
    fault = topic_name_fault(name)
    assert fault is not None
    assert fault.startswith("Topic name is invalid: ")
    assert text in fault


@given(
    st.text(st.sampled_from("./\\_-aZ0\0 ä"), max_size=4) | st.text(st.sampled_from("ab"), min_size=245, max_size=255)
)
def test_x5_no_legal_name_can_leave_its_directory(name: str) -> None:
    if topic_name_fault(name) is None:
        assert "/" not in name
        assert "\x00" not in name
        assert name not in {"", ".", ".."}
        assert len(name.encode()) <= 249


def test_x5_a_dot_and_an_underscore_collide() -> None:
    assert collision_key("a.b") == collision_key("a_b") == "a_b"
    assert collision_key("a-b") is None


def test_internal_topics_are_the_three_of_kafka() -> None:
    assert is_internal("__consumer_offsets")
    assert is_internal("__transaction_state")
    assert not is_internal("__cluster_metadata")
