"""ApiVersions: the advertised versions, and the answers to unknown versions and names."""

from __future__ import annotations

import pytest

from compat.oracle.conftest import Pair, kind, normal, same
from compat.oracle.raw import Reply
from compat.oracle.schema import api_names, decode_response, encode_request, framed, request_header

SOFTWARE = {"ClientSoftwareName": "compat", "ClientSoftwareVersion": "1.0"}


def ranges(response: dict[str, object]) -> dict[str, tuple[int, int]]:
    names = api_names()
    keys = response["ApiKeys"]
    assert isinstance(keys, list)
    return {names[key["ApiKey"]]: (key["MinVersion"], key["MaxVersion"]) for key in keys}


@pytest.mark.parametrize("version", range(5))
def test_advertised_versions_are_kafkas(pair: Pair, version: int) -> None:
    theirs, ours = pair.call("ApiVersions", version, SOFTWARE if version >= 3 else {})
    assert theirs["ErrorCode"] == ours["ErrorCode"] == 0
    assert theirs.keys() == ours.keys()
    kafkas, advertised = ranges(theirs), ranges(ours)
    assert {"Produce", "Fetch", "ListOffsets", "Metadata", "ApiVersions"} <= advertised.keys() <= kafkas.keys()
    assert {name: found for name, found in advertised.items() if found != kafkas[name]} == {}


@pytest.mark.parametrize("version", [5, 6, 99, 32767, -1])
def test_w3_an_unknown_version_gets_code_35_in_version_0(pair: Pair, version: int) -> None:
    frame = framed(request_header(18, version, 1, "compat", flexible=True) + b"\x02a\x021\x00")
    answers = pair.ask(frame)
    assert kind(answers[1]) == kind(answers[0])
    decoded = [decode_response("ApiVersions", 0, answer.payload) for answer in answers if isinstance(answer, Reply)]
    if decoded:
        assert same(decoded) == {"ErrorCode": 35, "ApiKeys": [{"ApiKey": 18, "MinVersion": 0, "MaxVersion": 4}]}


def test_w3_an_unknown_version_with_an_old_header_closes_the_connection(pair: Pair) -> None:
    frame = framed(request_header(18, 99, 1, "compat", flexible=False))
    theirs, ours = (kind(answer) for answer in pair.ask(frame))
    assert ours == theirs == "close"


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    ("name", "release"),
    [
        ("", "1"),
        ("a", ""),
        ("-a", "1"),
        ("a-", "1"),
        ("a b", "1"),
        ("a.b-c", "1.0-x"),
        ("ä", "1"),
        ("a", "1\n"),
        ("x" * 300, "1"),
    ],
)
def test_a_software_name_is_judged_as_kafka_judges_it(pair: Pair, version: int, name: str, release: str) -> None:
    theirs, ours = pair.call("ApiVersions", version, {"ClientSoftwareName": name, "ClientSoftwareVersion": release})
    assert ours["ErrorCode"] == theirs["ErrorCode"]
    assert bool(ours["ApiKeys"]) == bool(theirs["ApiKeys"])


def test_finalized_features_are_within_the_supported_range(pair: Pair) -> None:
    theirs, ours = pair.call("ApiVersions", 4, SOFTWARE)
    kafkas = {feature["Name"]: feature for feature in theirs["SupportedFeatures"]}
    supported = {feature["Name"]: feature for feature in ours["SupportedFeatures"]}
    finalized = {feature["Name"]: feature["MaxVersionLevel"] for feature in ours["FinalizedFeatures"]}
    assert "metadata.version" in finalized
    assert finalized.keys() <= supported.keys() <= kafkas.keys()
    for name, level in finalized.items():
        assert supported[name]["MinVersion"] <= level <= supported[name]["MaxVersion"] <= kafkas[name]["MaxVersion"]
    assert ours["FinalizedFeaturesEpoch"] >= 0


def test_it_can_be_repeated_on_a_connection(pair: Pair) -> None:
    for connection in pair.connect():
        frame = encode_request("ApiVersions", 3, SOFTWARE)
        first, second = connection.exchange(frame), connection.exchange(frame)
        assert isinstance(first, Reply)
        assert isinstance(second, Reply)
        one, two = (decode_response("ApiVersions", 3, answer.payload) for answer in (first, second))
        assert normal(one) == normal(two)
        connection.close()
