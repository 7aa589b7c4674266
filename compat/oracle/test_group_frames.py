"""Frames of the group APIs that are cut or have wrong counts: the same class {reply, close, silence} as Kafka."""

from __future__ import annotations

import pytest

from compat.oracle.conftest import Pair, kind
from compat.oracle.groups import beating, committing, fetching, joining, leaving, syncing
from compat.oracle.schema import Message, encode_request, framed, schema

MESSAGES: dict[str, Message] = {
    "FindCoordinator": {"Key": "frames", "KeyType": 0, "CoordinatorKeys": ["frames"]},
    "JoinGroup": joining("frames", "nobody"),
    "SyncGroup": syncing("frames", 1, "nobody", {"nobody": b"x"}),
    "Heartbeat": beating("frames", 1, "nobody"),
    "LeaveGroup": leaving("frames", ("nobody", None)),
    "OffsetCommit": committing("frames", {"never-created": [(0, 1, "m")]}, generation=1, member_id="nobody"),
    "OffsetFetch": fetching("frames", {"never-created": [0]}),
    "OffsetDelete": {"GroupId": "frames", "Topics": [{"Name": "t", "Partitions": [{"PartitionIndex": 0}]}]},
    "ListGroups": {"StatesFilter": ["Stable"], "TypesFilter": ["classic"]},
    "DescribeGroups": {"Groups": ["frames"]},
    "DeleteGroups": {"GroupsNames": ["frames"]},
}
HEADER = 4 + 2 + 2 + 4 + 2 + len("compat")  # length, key, version, correlation id, client id


@pytest.mark.parametrize("api", MESSAGES)
def test_w2_a_body_that_is_cut_anywhere_is_of_kafkas_class(pair: Pair, api: str) -> None:
    valid = schema(f"{api}Request").valid
    for version in {valid.low, (valid.low + valid.high) // 2, valid.high}:
        whole = encode_request(api, version, MESSAGES[api])[4:]
        step = max((len(whole) - HEADER + 4) // 8, 1)
        for size in {*range(HEADER - 4, len(whole), step), len(whole) - 1}:
            theirs, ours = (kind(answer) for answer in pair.ask(framed(whole[:size])))
            assert (version, size, ours) == (version, size, theirs)


@pytest.mark.parametrize("api", MESSAGES)
def test_extra_bytes_after_a_body_are_of_kafkas_class(pair: Pair, api: str) -> None:
    valid = schema(f"{api}Request").valid
    for version in {valid.low, valid.high}:
        frame = framed(encode_request(api, version, MESSAGES[api])[4:] + b"\x00\x01surplus")
        theirs, ours = (kind(answer) for answer in pair.ask(frame))
        assert (version, ours) == (version, theirs) == (version, "reply")


@pytest.mark.parametrize("api", MESSAGES)
def test_w4_a_wrong_count_or_length_is_of_kafkas_class(pair: Pair, api: str) -> None:
    lie = b"\x7f\x7f\x7f\x7f"  # about two billion as a number, 126 as a flexible length, and text as text
    valid = schema(f"{api}Request").valid
    for version in {valid.low, valid.high}:
        whole = encode_request(api, version, MESSAGES[api])[4:]
        for place in range(HEADER - 4, len(whole) - 4, max(len(whole) // 20, 1)):
            data = whole[:place] + lie + whole[place + 4 :]
            theirs, ours = (kind(answer) for answer in pair.ask(framed(data)))
            assert (version, place, ours) == (version, place, theirs)


@pytest.mark.parametrize("api", MESSAGES)
def test_w3_a_version_that_is_not_served_closes_the_connection(pair: Pair, api: str) -> None:
    valid = schema(f"{api}Request").valid
    whole = encode_request(api, valid.high, MESSAGES[api])[4:]
    for version in (-1, valid.low - 1, valid.high + 1, 32767):
        data = whole[:2] + version.to_bytes(2, "big", signed=True) + whole[4:]
        theirs, ours = (kind(answer) for answer in pair.ask(framed(data)))
        assert (version, ours) == (version, theirs) == (version, "close")


def test_w2_text_that_is_not_utf_8_is_malformed(pair: Pair) -> None:
    """A stated difference: Kafka replaces it by U+FFFD, so that two different names become one."""
    frame = encode_request("Heartbeat", 0, MESSAGES["Heartbeat"])
    theirs, ours = (kind(answer) for answer in pair.ask(frame.replace(b"frames", b"fr\xc3\x28es")))
    assert theirs == "reply"
    assert ours in {"close", "reply"}
