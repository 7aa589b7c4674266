"""CreateAcls and DeleteAcls: the bounds of a decision, and what a snapshot keeps."""

from __future__ import annotations

from kbroker.metadata.image import Image
from kbroker.metadata.snapshot import image_records
from tests.controller.cluster import Cluster
from wire.errors import ErrorCode
from wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse


def create(cluster: Cluster, *names: str) -> list[tuple[int, str | None]]:
    entries = [
        AclCreation(
            resource_type=2, resource_name=name, principal="User:alice", host="*", operation=3, permission_type=3
        )
        for name in names
    ]
    answer: CreateAclsResponse = cluster.ask(CreateAclsRequest(creations=entries))
    return [(result.error_code, result.error_message) for result in answer.results]


def delete(cluster: Cluster, *names: str | None) -> list[DeleteAclsFilterResult]:
    filters = [
        DeleteAclsFilter(
            resource_type_filter=1, resource_name_filter=name, pattern_type_filter=1, principal_filter=None,
            host_filter=None, operation=1, permission_type=1,
        )
        for name in names
    ]  # fmt: skip
    answer: DeleteAclsResponse = cluster.ask(DeleteAclsRequest(filters=filters))
    return answer.filter_results


def names(cluster: Cluster) -> list[str]:
    return [acl.resource_name for acl in cluster.image.acls.values()]


def test_acls_are_created_once_and_kept_in_snapshots() -> None:
    cluster = Cluster()
    assert create(cluster, "a", "b", "a") == [(0, None)] * 3
    create(cluster, "b")
    assert names(cluster) == ["a", "b"]
    assert Image().apply(image_records(cluster.image), offset=1, epoch=1).acls == cluster.image.acls


def test_an_acl_that_two_filters_match_is_deleted_once() -> None:
    cluster = Cluster()
    create(cluster, "a", "b")
    results = delete(cluster, "a", None)
    assert [len(result.matching_acls) for result in results] == [1, 2]
    assert not names(cluster)


def test_a_request_for_too_many_acls_changes_none() -> None:
    cluster = Cluster(max_records_per_decision=2)
    too_many = (ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    assert create(cluster, "a", "b", "c") == [too_many] * 3
    create(cluster, "a", "b")
    create(cluster, "c")
    (first, second) = delete(cluster, None, "a")
    assert first.error_message == "Cannot remove more than 2 acls in a single delete operation."
    assert (first.error_code, first.matching_acls) == (ErrorCode.POLICY_VIOLATION, [])
    assert second.error_code == 0
    assert names(cluster) == ["b", "c"]
