"""Which controller a broker asks, and what it believes about the leader."""

from __future__ import annotations

from kbroker.config.quorum import ControllerAddress
from kbroker.controller.quorum_view import Address, QuorumView
from wire.stored.control import Endpoint, KRaftVersionFeature, VotersRecord, VotersVoter
from wire.types import ZERO_UUID

CONFIGURED = (ControllerAddress("a", 1, 100), ControllerAddress("b", 2, 101), ControllerAddress("c", 3))


def view() -> QuorumView:
    return QuorumView(CONFIGURED, listener="CONTROLLER", epoch=4)


def voter(voter_id: int, host: str, listener: str = "CONTROLLER") -> VotersVoter:
    endpoints = [Endpoint(name="OTHER", host="wrong", port=9), Endpoint(name=listener, host=host, port=7)]
    feature = KRaftVersionFeature(min_supported_version=0, max_supported_version=1)
    return VotersVoter(
        voter_id=voter_id, voter_directory_id=ZERO_UUID, endpoints=endpoints, kraft_version_feature=feature
    )


def test_without_a_leader_all_controllers_are_asked_by_turns() -> None:
    quorum = view()
    assert {quorum.next_address() for _ in range(3)} == {("a", 1), ("b", 2), ("c", 3)}


def test_the_leader_is_found_by_the_endpoint_in_the_answer() -> None:
    quorum = view()
    assert quorum.on_leader(102, 5, [(102, "d", 4)])
    assert (quorum.leader, quorum.leader_id, quorum.epoch) == (Address("d", 4), 102, 5)
    assert quorum.next_address() == ("d", 4)
    assert not quorum.on_leader(102, 5, [(102, "d", 4)]), "nothing new"


def test_the_leader_is_found_by_the_static_voters() -> None:
    quorum = view()
    quorum.on_leader(101, 5, [])
    assert quorum.leader == ("b", 2)


def test_the_voters_in_the_log_replace_the_static_ones() -> None:
    quorum = view()
    quorum.on_voters(VotersRecord(version=0, voters=[voter(101, "moved"), voter(103, "new")]))
    quorum.on_leader(101, 5, [])
    assert quorum.leader == ("moved", 7)
    quorum.on_leader(103, 6, [])
    assert quorum.leader == ("new", 7)


def test_an_older_epoch_and_no_leader_in_the_same_epoch_change_nothing() -> None:
    quorum = view()
    quorum.on_leader(101, 5, [])
    assert not quorum.on_leader(100, 4, [])
    assert not quorum.on_leader(-1, 5, [])
    assert quorum.leader_id == 101


def test_a_newer_epoch_without_a_leader_ends_the_old_leadership() -> None:
    quorum = view()
    quorum.on_leader(101, 5, [])
    assert quorum.on_leader(-1, 6, [])
    assert (quorum.leader, quorum.epoch) == (None, 6)


def test_a_leader_that_does_not_answer_is_forgotten_but_not_its_epoch() -> None:
    quorum = view()
    quorum.on_leader(101, 5, [])
    quorum.on_failure(Address("a", 1))
    assert quorum.leader == ("b", 2)
    quorum.on_failure(Address("b", 2))
    assert (quorum.leader, quorum.epoch) == (None, 5)
