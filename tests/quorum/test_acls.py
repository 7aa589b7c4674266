"""ACLs on a controller: what brokers forward is decided for their clients, and who may forward."""

from __future__ import annotations

from typing import Any

from kbroker.config.authorizer import STANDARD_AUTHORIZER
from tests.handlers.test_acls import ALL_ACLS, entry
from tests.quorum.site import Site, controller_site
from tests.quorum.test_asking import wrapped
from wire.errors import ErrorCode
from wire.framing import decode_response
from wire.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from wire.messages.describe_acls import DescribeAclsRequest
from wire.stored.frame import encode_value
from wire.stored.principal import DefaultPrincipalData


def guarded(super_users: str) -> Any:
    return controller_site(authorizer_class_name=STANDARD_AUTHORIZER, super_users=super_users)


async def forwarded(site: Site, name: str) -> list[int]:
    """The codes of a CreateAcls that a broker forwards for a user."""
    client = await site.connect()
    principal = encode_value(DefaultPrincipalData(type="User", name=name, token_authenticated=False), 0)
    answer = await client.ask(wrapped(CreateAclsRequest(creations=[entry()]), 3, principal=principal))
    if answer.error_code:
        return [answer.error_code]
    return [result.error_code for result in decode_response(CreateAclsResponse, 3, answer.response_data)[1].results]


async def test_a_forwarded_change_of_acls_needs_the_rights_of_the_client() -> None:
    async with guarded("User:ANONYMOUS;User:admin") as site:
        assert await forwarded(site, "alice") == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
        assert not site.image.acls
        assert await forwarded(site, "admin") == [0]
        assert [acl.principal for acl in site.image.acls.values()] == ["User:alice"]
        described = await (await site.connect()).ask(DescribeAclsRequest(**ALL_ACLS))
        assert [resource.resource_name for resource in described.resources] == ["orders"]


async def test_a_broker_without_rights_forwards_nothing() -> None:
    async with guarded("User:admin") as site:
        assert await forwarded(site, "admin") == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
        assert not site.image.acls


async def test_a_controller_without_an_authorizer_refuses_forwarded_acls(site: Site) -> None:
    assert await forwarded(site, "admin") == [ErrorCode.SECURITY_DISABLED]
