"""``quorum-state``: which epoch this voter knows, and whom it voted for. One JSON object in a file of its own.

A single voter writes it before its epoch's first record, so that an epoch is never used twice. It is never guessed: a
file that cannot be read stops the process. Version 0 belongs to static voters (kraft.version 0), version 1 to
dynamic ones.

Source: FileQuorumStateStore and QuorumStateData of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from kbroker.metadata.errors import UnusableMetadata

FILE_NAME = "quorum-state"


@dataclass(frozen=True, slots=True)
class QuorumState:
    """What the file says. leader_id and voted_id are -1 when there is none."""

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
    """Read the file. Raises UnusableMetadata unless it is whole and of a known version."""
    try:
        document = json.loads(data)
        version = document["data_version"]
        if version not in {0, 1}:
            raise UnusableMetadata(f"{path} has version {version}, which this version does not know")
        state = QuorumState(
            leader_id=_integer(document["leaderId"]),
            leader_epoch=_integer(document["leaderEpoch"]),
            voted_id=_integer(document["votedId"]),
            voters=tuple(_integer(voter["voterId"]) for voter in document.get("currentVoters") or ()),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UnusableMetadata(f"{path} cannot be read ({error}); the quorum's epoch is never guessed") from error
    return state


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an integer")
    return value
