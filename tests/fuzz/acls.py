"""The authorizer: its answers are compared with those of a search through all ACLs (tests/security/acl_model.py), while
ACLs are added and removed. During a change, an answer may be that of the old or of the new ACLs, or a refusal.

Other targets read filters and new ACLs with any numbers, and the names in a client's certificate.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from cryptography import x509

from kbroker.metadata.principal import Principal
from kbroker.security.acl_filters import AclFilter, check_new_acl
from kbroker.security.acls import StandardAuthorizer, java_address
from kbroker.security.authorizing import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from kbroker.security.certificates import alternative_names, subject
from tests.fuzz.target import Target
from tests.security.acl_model import acl, applies, is_allowed, is_allowed_on_any
from tests.security.certificates import Authority
from wire.errors import KafkaError
from wire.messages.create_acls import AclCreation
from wire.stored.metadata import AccessControlEntryRecord

TYPES: Final = tuple(ResourceType)[2:]
_TEXTS: Final = ("t", "hidden-topic", "hidden-", "h", "*", "g", "", "hidden-topic-2", "tt", "T", "*t", "é", "$a")
OF_TYPE: Final[Mapping[ResourceType, tuple[str, ...]]] = {
    kind: (CLUSTER_NAME, *_TEXTS) if kind is ResourceType.CLUSTER else _TEXTS for kind in TYPES
}
PRINCIPALS: Final = ("User:alice", "User:*", "User:bob", "Group:alice", "User:", "*", "User:alice2", "alice")
HOSTS: Final = ("*", "198.51.100.1", "198.51.100.10", "0:0:0:0:0:0:0:1", "::1", "10.0.0.1", "fe80:0:0:0:0:0:0:1%4")
ASKED_HOSTS: Final = ("198.51.100.1", "::1", "::ffff:10.0.0.1", "fe80::1%4")
_OPERATIONS: Final = tuple(Operation)[2:]


def acl_of(four: bytes) -> AccessControlEntryRecord:
    """The ACL of four bytes: principal, permission, pattern and type; operation; name; host."""
    kind = TYPES[four[0] % 8 % len(TYPES)]
    names = OF_TYPE[kind]
    return acl(
        PRINCIPALS[four[0] >> 5],
        _OPERATIONS[four[1] % len(_OPERATIONS)],
        names[four[2] % len(names)],
        type=kind,
        host=HOSTS[four[3] % len(HOSTS)],
        pattern=PatternType.PREFIXED if four[0] & 8 else PatternType.LITERAL,
        permission=Permission.DENY if four[0] & 16 else Permission.ALLOW,
    )


def as_bytes(
    kind: ResourceType, operation: Operation, name: str, *, is_prefix: bool = False, denies: bool = False
) -> bytes:
    """An ACL of alice from everywhere, as four bytes."""
    first = TYPES.index(kind) | is_prefix << 3 | denies << 4
    return bytes([first, _OPERATIONS.index(operation), OF_TYPE[kind].index(name), 0])


class _Question(NamedTuple):
    """A question: whether a client may do something."""

    who: Principal
    host: str
    operation: Operation
    kind: ResourceType
    name: str

    @classmethod
    def of(cls, four: bytes) -> _Question:
        asked = acl_of(four)
        kind, _, name = asked.principal.partition(":")
        host = ASKED_HOSTS[four[3] % len(ASKED_HOSTS)]
        return cls(
            Principal(kind, name),
            host,
            Operation(asked.operation),
            TYPES[four[0] % 8 % len(TYPES)],
            asked.resource_name,
        )


class _World:
    """The authorizer, the ACLs that it should know, and those that it should know next."""

    def __init__(self, flags: int) -> None:
        self.everyone = bool(flags & 1)
        self.super_users = ("User:bob",) if flags & 2 else ()
        self.judge = StandardAuthorizer(super_users=self.super_users, allows_without_acls=self.everyone)
        self.judge.update({})
        self.acls: dict[UUID, AccessControlEntryRecord] = {}
        self.next: dict[UUID, AccessControlEntryRecord] = {}

    def answers(self, asked: _Question) -> tuple[bool, bool]:
        """The answers of the authorizer: about the resource, and about any of its type."""
        who, host, operation, kind, name = asked
        return self.judge.allows(who, host, operation, kind, name), self.judge.allows_any(who, host, operation, kind)

    def expected(self, acls: Mapping[UUID, AccessControlEntryRecord], asked: _Question) -> tuple[bool, bool]:
        """The right answers."""
        who, host, operation, kind, name = asked
        if str(who) in self.super_users:
            return True, True
        given = list(acls.values())

        def on(resource: str) -> bool:
            return is_allowed(
                given, str(who), java_address(host), operation, type=kind, name=resource, without_acls=self.everyone
            )

        on_any = on("hardcode") or is_allowed_on_any(given, str(who), java_address(host), operation, kind)
        return on(name), on_any

    def change(self, asked: _Question) -> None:
        """Use the next ACLs, and ask in every step."""
        old, new = self.expected(self.acls, asked), self.expected(self.next, asked)
        for _ in self.judge.update_in_steps(self.next):
            found = self.answers(asked)
            assert found[0] <= (old[0] or new[0]), "a right that neither the old nor the new ACLs give"
            assert found[1] <= (old[1] or new[1]), "a right on some resource that neither the old nor the new ACLs give"
        self.acls, self.next = self.next, dict(self.next)
        self.check(asked)

    def check(self, asked: _Question) -> None:
        """Compare the answers."""
        assert self.answers(asked) == self.expected(self.acls, asked), f"a wrong answer: {asked}"
        bits = self.judge.operations(asked.who, asked.host, asked.kind, asked.name)
        assert bool(bits >> asked.operation & 1) == self.expected(self.acls, asked)[0]
        assert self.judge.count == len(self.acls)


def decide(data: bytes) -> None:
    """Byte 0: everyone and super users; then steps of five bytes: what to do, and an ACL or a question."""
    if not data:
        return
    world = _World(data[0])
    for at in range(1, len(data) - 4, 5):
        step, four = data[at], data[at + 1 : at + 5]
        match step % 6:
            case 0 | 1:
                one = acl_of(four)
                world.next[one.id] = one
            case 2:
                if world.next:
                    del world.next[list(world.next)[four[0] % len(world.next)]]
            case 3:
                world.change(_Question.of(four))
            case 4:
                world.check(_Question.of(four))
            case 5:
                _filter(step, four, world.acls.values())


def _filter(step: int, four: bytes, acls: Iterable[AccessControlEntryRecord]) -> None:
    kind, pattern, operation, permission = (number % 20 - 2 for number in four)
    name = None if step & 64 else _TEXTS[four[0] % len(_TEXTS)]
    asked = AclFilter(kind, name, pattern, None, HOSTS[1] if step & 128 else None, operation, permission)
    for one in acls:
        found = asked.matches(one)
        if pattern == PatternType.MATCH and asked._replace(pattern_type=1, name=None).matches(one):
            assert found == (name is None or applies(one, one.resource_type, name))
    with contextlib.suppress(KafkaError):
        asked.validate()
    with contextlib.suppress(KafkaError):
        check_new_acl(
            AclCreation(
                resource_type=kind,
                resource_name=name or "",
                resource_pattern_type=pattern,
                principal=PRINCIPALS[four[0] % len(PRINCIPALS)],
                host="*",
                operation=operation,
                permission_type=permission,
            )
        )


def _histories() -> Iterator[bytes]:
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    read, write = Operation.READ, Operation.WRITE
    allow = as_bytes(topic, read, "t")
    deny = as_bytes(topic, read, "t", denies=True)
    prefix = as_bytes(topic, write, "hidden-", is_prefix=True)
    longer = as_bytes(topic, write, "h", is_prefix=True, denies=True)
    everywhere = as_bytes(topic, Operation.ALL, "*")
    question = as_bytes(topic, read, "t")
    for flags in range(4):
        head = bytes([flags])
        yield head + b"\x04" + question
        yield head + b"\0" + allow + b"\x03" + question + b"\0" + deny + b"\x03" + question
        yield head + b"\0" + prefix + b"\0" + longer + b"\x03" + as_bytes(topic, write, "hidden-topic")
        yield head + b"\0" + everywhere + b"\x03" + question + b"\x02\0\0\0\0\x03" + question
    yield b"\0\0" + as_bytes(group, read, "g") + b"\x03" + as_bytes(group, Operation.DESCRIBE, "g")
    for step in (0x05 + 6 * number for number in range(41)):
        yield b"\0\0" + allow + b"\x03" + question + bytes([step, 4, 6, 6, 5])


# --- certificates -----------------------------------------------------------------------------------------------------


def read_certificate(data: bytes) -> None:
    """The subject and the names of a certificate in DER. Every certificate that `cryptography` reads can be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = _names_by_cryptography(data)
    try:
        name = subject(data)
        names = alternative_names(data)
    except ValueError:
        assert theirs is None, f"a certificate with {theirs} cannot be read"
        return
    name.encode()
    if theirs is not None:
        assert (len(names) > 0) == (theirs[1] > 0)


def _names_by_cryptography(data: bytes) -> tuple[int, int] | None:
    """The number of names in the subject, and of alternative names; None if it cannot be read."""
    try:
        certificate = x509.load_der_x509_certificate(data)
        found = certificate.subject.rdns
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return len(found), 0
        return len(found), len(list(names))
    except (ValueError, TypeError, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return None


def _certificates() -> Iterator[bytes]:
    authority = Authority()
    yield authority.der
    oid = x509.oid.NameOID
    for attributes in (
        [(oid.COMMON_NAME, "Duke")],
        [(oid.COUNTRY_NAME, "US"), (oid.ORGANIZATION_NAME, "Sun Microsystems, Inc."), (oid.COMMON_NAME, "#é ")],
        [(oid.EMAIL_ADDRESS, "a@b.c"), (oid.SERIAL_NUMBER, "42")],
    ):
        for names in ((), ("a.example", "::1", "10.0.0.1")):
            yield authority.sign(*attributes, names=names).der
    yield authority.der[:100]


TARGETS = (
    Target("acls", decide, _histories, max_bytes=120, lines=(5_000, 1_000)),
    Target("certificates", read_certificate, _certificates),
)
