"""``quorum-state``: the epoch that this voter knows and its vote, as one JSON object in a file.

A single voter writes the file before the first record of its epoch, so that no epoch is used twice. If the file cannot
be read, the process stops: an epoch is never guessed. Version 0 belongs to static voters (kraft.version 0), version 1
to dynamic ones.

Source: FileQuorumStateStore and QuorumStateData of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from kbroker.metadata.errors import UnusableMetadata

FILE_NAME = "quorum-state"


class QuorumState(NamedTuple):
    """The contents of the file. leader_id and voted_id are -1 if there is none."""

    leader_id: int
    leader_epoch: int
    voted_id: int
    voters: tuple[int, ...]


def format_quorum_state(state: QuorumState) -> bytes:
    """The file's bytes, version 0."""
    document = {
        "clusterId": "",
        "leaderId": state.leader_id,
        "leaderEpoch": state.leader_epoch,
        "votedId": state.voted_id,
        "appliedOffset": 0,
        "currentVoters": [{"voterId": voter} for voter in state.voters],
        "data_version": 0,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def parse_quorum_state(data: bytes, path: str) -> QuorumState:
    """Parse the file. Raises UnusableMetadata if it is incomplete or of an unknown version."""
    try:
        document = json.loads(data)
        version = document["data_version"]
        if version not in {0, 1}:
            raise UnusableMetadata(f"{path} has the unknown version {version}")
        state = QuorumState(
            leader_id=_integer(document["leaderId"]),
            leader_epoch=_integer(document["leaderEpoch"]),
            voted_id=_integer(document["votedId"]),
            voters=tuple(_integer(voter["voterId"]) for voter in document.get("currentVoters") or ()),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnusableMetadata(f"{path} cannot be read ({error}), so the quorum epoch is unknown") from error
    return state


def _integer(value: object) -> int:
    if type(value) is not int or not -1 <= value < 1 << 31:
        raise TypeError(f"{value!r:.80} is not an integer of 32 bits")
    return value
