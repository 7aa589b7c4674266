"""The parts of an X.509 certificate that Kafka uses: the distinguished name of its subject and its alternative names.

The name is written as Java writes it (`X500Principal.getName()`, RFC 2253), because access control lists contain it:
the last part of the subject first, and types without a short name in RFC 2253 as a number with a hexadecimal value.
Versions of Java differ about text that is neither ASCII nor a UTF8String: BMPString, and Latin-1 in the types of bytes,
are read as by Java 25; UTF-8 in the types of bytes, as by Java 17.
Python's `ssl` gives names in another form, which loses the type of a value; so this module reads the DER encoding.

Source  RFC 5280, RFC 2253; sun.security.x509.AVA of OpenJDK 17
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ENCODINGS: Final = {12: "utf-8", 19: "utf-8", 20: "utf-8", 22: "utf-8", 27: "utf-8", 30: "utf-16-be"}
"""Tags of text: UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString."""
_OF_BYTES: Final = (19, 20, 22, 27)
_ESCAPED: Final = ',=+<>#;"\\'
_VERSION, _EXTENSIONS = 0xA0, 0xA3
_SUBJECT_ALTERNATIVE_NAME: Final = bytes.fromhex("0603551d11")


class _Element(NamedTuple):
    tag: int
    content: bytes
    whole: bytes


def _elements(data: bytes) -> Iterator[_Element]:
    """The DER elements in `data`. Errors: ValueError."""
    position = 0
    while position < len(data):
        start = position
        try:
            tag, size = data[position], data[position + 1]
        except IndexError as error:
            raise ValueError("truncated DER") from error
        position += 2
        if size & 0x80:
            digits = size & 0x7F
            if not digits:
                raise ValueError("DER with an indefinite length")
            size = int.from_bytes(data[position : position + digits], "big")
            position += digits
        end = position + size
        if end > len(data):
            raise ValueError("truncated DER")
        yield _Element(tag, data[position:end], data[start:end])
        position = end


def _inside(data: bytes) -> list[_Element]:
    """The DER elements in the first one in `data`. Errors: ValueError."""
    for first in _elements(data):
        return list(_elements(first.content))
    raise ValueError("DER without an element")


def _tbs(certificate: bytes) -> list[_Element]:
    """The fields of the signed part, without the version. Errors: ValueError."""
    outer = _inside(certificate)
    fields = list(_elements(outer[0].content)) if outer else []
    fields = fields[1:] if fields and fields[0].tag == _VERSION else fields
    if len(fields) < 6:
        raise ValueError("not a certificate")
    return fields


def subject(certificate: bytes) -> str:
    """The distinguished name of a certificate in DER, as Java writes it. Errors: ValueError."""
    relative = list(_elements(_tbs(certificate)[4].content))
    return ",".join("+".join(_attribute(one) for one in _elements(names.content)) for names in reversed(relative))


def alternative_names(certificate: bytes) -> frozenset[bytes]:
    """The subject alternative names of a certificate in DER, each as its encoding. Errors: ValueError."""
    for field in _tbs(certificate):
        if field.tag != _EXTENSIONS:
            continue
        for extension in _inside(field.content):
            kind, *_, value = _elements(extension.content)
            if kind.whole == _SUBJECT_ALTERNATIVE_NAME:
                return frozenset(name.whole for name in _inside(value.content))
    return frozenset()


def _attribute(pair: _Element) -> str:
    kind, value = _elements(pair.content)
    number = _number(kind.content)
    keyword = _KEYWORDS.get(number)
    encoding = _ENCODINGS.get(value.tag)
    if keyword is None or encoding is None:
        return f"{keyword or number}=#{value.whole.hex()}"
    try:
        text = value.content.decode(encoding)
    except UnicodeDecodeError:
        # Java 17 makes the same character of all such bytes, so that names of old authorities could be confused.
        text = value.content.decode(*(("latin-1",) if value.tag in _OF_BYTES else (encoding, "replace")))
    return f"{keyword}={_escaped(text)}"


def _number(encoded: bytes) -> str:
    """An object identifier with dots."""
    numbers, current = [], 0
    for byte in encoded:
        current = current << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(current)
            current = 0
    if not numbers:
        raise ValueError("DER with an empty object identifier")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escaped(text: str) -> str:
    inner = text.strip(" \r")
    lead = len(text) - len(text.lstrip(" \r")) if inner else len(text)
    body = "".join(f"\\{one}" if one in _ESCAPED else "\\00" if one == "\0" else one for one in inner)
    before = "".join(f"\\{one}" for one in text[:lead])
    after = "".join(f"\\{one}" for one in text[lead + len(inner) :])
    return before + body + after
