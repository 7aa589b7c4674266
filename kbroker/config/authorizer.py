"""Settings of the authorizer.

Two of them are no settings of Kafka's brokers but of the class, so DescribeConfigs shows them only where they are set.
"""

from __future__ import annotations

from kbroker.config.settings import setting, settings

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def _check_class(name: str) -> str | None:
    if name in ("", STANDARD_AUTHORIZER):
        return None
    return f"kbroker has no Java; the only authorizer that it has is {STANDARD_AUTHORIZER}"


def parse_super_users(text: str) -> frozenset[str]:
    """The principals in a list that is separated by semicolons. Errors: ValueError, with Kafka's message."""
    found = frozenset(stripped for part in text.split(";") if (stripped := part.strip()))
    for principal in found:
        if ":" not in principal:
            raise ValueError(f"expected a string in format principalType:principalName but got {principal}")
    return found


def _check_super_users(text: str) -> str | None:
    try:
        parse_super_users(text)
    except ValueError as error:
        return str(error)
    return None


@settings
class AuthorizerSettings:
    """Who may do what; see docs/security.md. Without an authorizer every client may do everything."""

    authorizer_class_name: str = setting(
        default="",
        check=_check_class,
        doc=f"The authorizer. `{STANDARD_AUTHORIZER}` decides by ACLs; if it is empty, all is allowed.",
    )
    super_users: str = setting(
        default="",
        check=_check_super_users,
        internal=True,
        doc="Principals that may do everything, such as `User:admin;User:ANONYMOUS`.",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        default=False, internal=True, doc="Whether everybody may do everything with a resource to which no ACL applies."
    )
