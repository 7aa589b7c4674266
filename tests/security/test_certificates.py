"""Distinguished names as Java writes them: the expected texts are the output of OpenJDK 17 for these certificates."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from kbroker.security.certificates import alternative_names, subject
from tests.security.certificates import Authority

AUTHORITY = Authority()


@pytest.mark.parametrize(
    ("attributes", "name"),
    [
        (
            [
                (NameOID.COUNTRY_NAME, "US"),
                (NameOID.ORGANIZATION_NAME, "Sun Microsystems, Inc."),
                (NameOID.COMMON_NAME, "Duke"),
            ],
            r"CN=Duke,O=Sun Microsystems\, Inc.,C=US",
        ),
        ([(NameOID.COMMON_NAME, ' a+b=c<d>e;f"g\\h# ')], r"CN=\ a\+b\=c\<d\>e\;f\"g\\h\#" + "\\ "),
        (
            [
                (NameOID.COMMON_NAME, "#x"),
                (NameOID.STATE_OR_PROVINCE_NAME, "MD"),
                (NameOID.LOCALITY_NAME, "Fulton"),
                (NameOID.STREET_ADDRESS, "s"),
                (NameOID.DOMAIN_COMPONENT, "com"),
                (NameOID.USER_ID, "u1"),
            ],
            r"UID=u1,DC=com,STREET=s,L=Fulton,ST=MD,CN=\#x",
        ),
        (
            [
                (NameOID.EMAIL_ADDRESS, "a@b.c"),
                (NameOID.SERIAL_NUMBER, "42"),
                (NameOID.TITLE, "Dr"),
                (NameOID.COMMON_NAME, "Müller"),
            ],
            "CN=Müller,2.5.4.12=#0c024472,2.5.4.5=#13023432,1.2.840.113549.1.9.1=#16056140622e63",
        ),
        ([(NameOID.COMMON_NAME, "  two  inner  ")], "CN=\\ \\ two  inner\\ \\ "),
    ],
)
def test_a_subject_is_written_as_by_java(attributes: list[tuple[x509.ObjectIdentifier, str]], name: str) -> None:
    assert subject(AUTHORITY.sign(*attributes).der) == name


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (b"\x14\x04M\xfcle", "CN=Müle"),  # a T61String as old authorities made it
        (b"\x14\x04M\xe4le", "CN=Mäle"),
        (b"\x14\x04M\xc3\xbcl", "CN=Mül"),
        (b"\x1e\x04\x6f\x22\x5b\x57", "CN=\u6f22\u5b57"),
        (b"\x1c\x04\0\0\0a", "CN=#1c0400000061"),
        (b"\x0c\x04M\xfcle", "CN=M\ufffdle"),
    ],
)
def test_names_in_old_encodings_are_not_confused(value: bytes, name: str) -> None:
    der = AUTHORITY.sign((NameOID.COMMON_NAME, "four")).der
    assert subject(der.replace(b"\x0c\x04four", value)) == name


def test_alternative_names_are_found() -> None:
    assert len(alternative_names(AUTHORITY.sign(names=("a.example", "b.example", "::1")).der)) == 3
    assert alternative_names(AUTHORITY.sign(names=()).der) == frozenset()


def test_damaged_certificates_are_value_errors() -> None:
    der = AUTHORITY.sign().der
    for data in [b"", b"\x30", b"\x30\x00", *(der[:size] for size in range(0, len(der), 7))]:
        with pytest.raises(ValueError, match=r"DER|certificate"):
            subject(data)
