"""The server's side of SCRAM, and PLAIN: vectors of the RFCs, and clients that do something else."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
import re
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.client.security import exchange
from kbroker.metadata.image import Image
from kbroker.security.sasl import MAX_TOKEN_BYTES, AuthenticationFailed, Exchange
from kbroker.security.sasl.plain import PlainExchange, PlainUsers
from kbroker.security.sasl.scram import (
    MECHANISMS,
    SALT_ALPHABET,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    CredentialStore,
    ScramExchange,
    ScramMechanism,
    ScramUsers,
    credential_of,
    is_portable,
    new_salt,
    salted_password,
)

SECRET = b"of the cluster"
# RFC 5802 and RFC 7677 name their example's user "user" and its password "pencil".
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def store_of(records: dict[tuple[str, int], Any], secret: bytes = SECRET) -> CredentialStore:
    store, image = CredentialStore(secret), Image(scram_credentials=records)
    store.image = lambda: image
    return store


def users(*names: str, mechanism: ScramMechanism = SCRAM_SHA_256, salt: bytes = SALT) -> ScramUsers:
    """All with the password "pencil"."""
    made = credential_of(mechanism, salted_password(mechanism, "pencil", salt, 4096), salt, 4096)
    records = {(name, mechanism.number): SimpleNamespace(**made._asdict()) for name in names}
    return ScramUsers(store_of(records))


def login(*names: str, nonce: str = SERVER_NONCE) -> ScramExchange:
    return ScramExchange(SCRAM_SHA_256, users(*(names or ("user",))), nonce)


def refused(server: Exchange, token: bytes) -> str:
    with pytest.raises(AuthenticationFailed) as raised:
        server.respond(token)
    with pytest.raises(AuthenticationFailed):
        server.respond(token)  # it stays refused
    return str(raised.value)


def test_the_exchange_of_rfc_7677() -> None:
    server = login()
    assert server.respond(FIRST) == (CHALLENGE, None, None, None)
    assert server.respond(FINAL) == (SIGNATURE, "user", None, None)
    assert refused(server, FINAL)


def test_the_hash_of_rfc_5802() -> None:
    """RFC 5802 has its example for SHA-1, of which only the hash function differs."""
    sha_1 = ScramMechanism("SCRAM-SHA-1", 0, "sha1", 20)
    salt = base64.b64decode("QSXCR+Q6sek8bf92")
    found = credential_of(sha_1, salted_password(sha_1, "pencil", salt, 4096), salt, 4096)
    first = "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j"
    signed = f"n=user,r=fyko+d2lbbFgONRv9qkxdawL,{first},s=QSXCR+Q6sek8bf92,i=4096,c=biws,{first}".encode()
    assert base64.b64encode(sha_1.sign(found.server_key, signed)) == b"rmF9pqV8S7suAoZWja4dJRkFsKQ="


@pytest.mark.parametrize("mechanism", MECHANISMS.values())
@settings(deadline=None, max_examples=20)
@given(
    user=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1),
    salt=st.binary(min_size=1),
)
def test_the_commands_client_logs_in_as_any_user(mechanism: ScramMechanism, user: str, salt: bytes) -> None:
    server = ScramExchange(mechanism, users(user, mechanism=mechanism, salt=salt), "server")
    credentials = {"sasl_plain_username": user, "sasl_plain_password": "pencil"}
    client = exchange(mechanism.name, credentials, host="h", nonce="client")
    challenge = server.respond(next(client))
    outcome = server.respond(client.send(challenge.token))
    assert outcome.user == user
    with pytest.raises(StopIteration):
        client.send(outcome.token)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"", "cannot be read"),
        (b"y,,n=user,r=abc", "channel binding"),
        (b"p=tls-unique,,n=user,r=abc", "channel binding"),
        (b"n,,m=x,n=user,r=abc", "cannot be read"),
        (b"n,,n=user", "cannot be read"),
        (b"n,,n=,r=abc", "cannot be read"),
        (b"n,,n=us=er,r=abc", "cannot be read"),
        (b"n,,n=user,r=", "cannot be read"),
        (b"n,,n=user,r=a\x7f", "cannot be read"),
        (b"n,,n=user\0,r=abc", "cannot be read"),
        (b"n,a=admin,n=user,r=abc", "another user"),
        (b"n,,n=user,r=abc,tokenauth=true", "delegation tokens"),
        (b"n,,n=\xff,r=abc", "UTF-8"),
        (b"n,,n=user,r=" + b"a" * MAX_TOKEN_BYTES, "bytes"),
        (FINAL, "cannot be read"),
    ],
)
def test_a_bad_first_message_is_refused(first: bytes, reason: str) -> None:
    assert reason in refused(login(), first)


PROOF = FINAL.rpartition(b",p=")[2]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda final: final.replace(b"c=biws", b"c=eSws"), "belong"),  # another channel-binding flag
        (lambda final: final.replace(b"r=rOpr", b"r=xOpr"), "belong"),
        (lambda final: final.replace(b"$k0", b"$k1"), "belong"),  # CVE-2024-56128: the server's part has to match
        (lambda final: final.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""), "belong"),
        (lambda final: final.replace(PROOF, base64.b64encode(bytes(32))), "wrong password"),
        (lambda final: final.replace(PROOF, base64.b64encode(bytes(31))), "wrong size"),
        (lambda final: final.replace(PROOF, b"A"), "not base64"),
        (lambda final: final.replace(b",p=" + PROOF, b""), "cannot be read"),
        (lambda final: FIRST, "cannot be read"),
        (lambda final: final + b",x=y", "cannot be read"),
    ],
)
def test_x3_a_changed_final_message_is_refused(change: Callable[[bytes], bytes], reason: str) -> None:
    server = login()
    server.respond(FIRST)
    assert reason in refused(server, change(FINAL))


def test_x3_the_log_names_the_defect_of_old_clients() -> None:
    """librdkafka before 2.6.1 puts its nonce before the one of the server, which begins with it (its issue 4895)."""
    server = login()
    server.respond(FIRST)
    reason = refused(server, FINAL.replace(b"r=" + CLIENT_NONCE.encode(), b"r=" + 2 * CLIENT_NONCE.encode()))
    assert "librdkafka before 2.6.1" in reason


def test_x3_a_recorded_login_cannot_be_replayed() -> None:
    server = login(nonce="another")
    server.respond(FIRST)
    assert "belong" in refused(server, FINAL)


def test_x3_messages_of_two_logins_cannot_be_mixed() -> None:
    one, other = login(), login(nonce="another")
    one.respond(FIRST)
    other.respond(b"n,,n=user,r=another")
    assert "belong" in refused(other, FINAL)
    assert one.respond(FINAL).user == "user"


def test_x2_an_unknown_user_looks_like_a_wrong_password() -> None:
    def challenge(name: str, nonce: str = "s") -> bytes:
        return login("user", nonce=nonce).respond(f"n,,n={name},r=c".encode()).token

    known, unknown = challenge("user"), challenge("nobody")
    assert len(known) == len(unknown)
    assert challenge("nobody", nonce="t").replace(b"r=ct", b"r=cs") == unknown  # the salt stays the same
    assert challenge("somebody") != unknown
    server = login("user", nonce="s")
    salt = server.respond(b"n,,n=nobody,r=c").token
    client = exchange(
        "SCRAM-SHA-256", {"sasl_plain_username": "nobody", "sasl_plain_password": "pencil"}, host="h", nonce="c"
    )
    next(client)
    assert "unknown user" in refused(server, client.send(salt))


def test_x2_a_made_up_salt_has_the_form_of_the_others() -> None:
    of_kafka = users("al", salt=b"1k2j3h4g5f").find("nobody", SCRAM_SHA_256)[0]
    assert len(of_kafka.salt) == 10
    assert not set(of_kafka.salt) - set(SALT_ALPHABET)
    alone = ScramUsers(CredentialStore(SECRET)).find("nobody", SCRAM_SHA_512)[0]
    assert re.fullmatch(b"[1-9a-z][0-9a-z]{23,25}", alone.salt)
    assert alone.iterations == 4096


def shape(salt: bytes) -> tuple[int, bool]:
    """The length of a salt, and whether it begins with 1: so do all of 26 characters, because 2**130 < 2 * 36**25."""
    assert re.fullmatch(b"[1-9a-z][0-9a-z]*", salt)
    return len(salt), salt[:1] == b"1"


def test_x2_made_up_salts_are_distributed_like_those_of_users() -> None:
    """`made` follows the formula of Kafka's ScramFormatter, without our function."""
    draws, alphabet = random.Random(7), SALT_ALPHABET.decode()

    def made() -> bytes:
        number, text = draws.getrandbits(130), ""
        while number:
            number, digit = divmod(number, 36)
            text = alphabet[digit] + text
        return text.encode()

    kafkas = Counter(shape(made()) for _ in range(4_000))
    ours = Counter(shape(new_salt(draws.randbytes(16))) for _ in range(4_000))
    with_one_user = users("al", salt=made())
    unknown = [with_one_user.find(f"nobody{number}", SCRAM_SHA_256)[0] for number in range(4_000)]
    made_up = Counter(shape(credential.salt) for credential in unknown)
    for salt_shape in {*kafkas, *ours, *made_up}:
        expected = kafkas[salt_shape]
        for found in (ours, made_up):
            assert abs(found[salt_shape] - expected) < 6 * (expected + 10) ** 0.5, (salt_shape, kafkas, ours, made_up)
    assert (26, False) not in {*kafkas, *ours, *made_up}


@cache
def mixed_users(secret: bytes = SECRET) -> ScramUsers:
    """al has few iterations, bo many, and cy another mechanism."""
    records = {}
    for name, mechanism, salt, iterations in (
        ("al", SCRAM_SHA_256, b"1k2j3h4g5f", 4_096),
        ("bo", SCRAM_SHA_256, SALT, 16_384),
        ("cy", SCRAM_SHA_512, SALT, 8_192),
    ):
        made = credential_of(mechanism, salted_password(mechanism, "pencil", salt, iterations), salt, iterations)
        records[name, mechanism.number] = SimpleNamespace(**made._asdict())
    return ScramUsers(store_of(records, secret))


def test_x2_the_form_of_a_credential_does_not_tell_that_it_exists() -> None:
    def form(name: str) -> tuple[int, int]:
        found = mixed_users().find(name, SCRAM_SHA_256)[0]
        return len(found.salt), found.iterations

    made_up = [form(f"nobody{number}") for number in range(50)]
    assert set(made_up) == {form("al"), form("bo")}
    assert [form(f"nobody{number}") for number in range(50)] == made_up


def test_x2_made_up_salts_depend_on_the_secret_only() -> None:
    one, other = (mixed_users(secret).find("nobody", SCRAM_SHA_256)[0].salt[:10] for secret in (SECRET, b"another"))
    assert one != other
    assert users("al").find("nobody", SCRAM_SHA_256) == users("bo", "al").find("nobody", SCRAM_SHA_256)


@pytest.mark.parametrize("known", [mixed_users(), ScramUsers(CredentialStore(SECRET))], ids=["users", "no users"])
def test_x2_plain_hashes_as_much_for_every_user(known: ScramUsers, monkeypatch: pytest.MonkeyPatch) -> None:
    work: dict[str, dict[str, list[int]]] = {}
    pbkdf2 = hashlib.pbkdf2_hmac
    for user in ("al", "bo", "cy", "nobody", "somebody", "anybody"):
        done = work[user] = {}

        def counted(name: str, *arguments: Any, done: dict[str, list[int]] = done) -> bytes:
            done.setdefault(name, []).append(arguments[2])
            return pbkdf2(name, *arguments)

        monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)
        assert refused(PlainExchange(PlainUsers({"al": "sesame"}, known)), f"\0{user}\0wrong".encode())
    sums = [{name: sum(each) for name, each in done.items()} for done in work.values()]
    for one in sums:
        assert one.keys() == sums[0].keys()
        assert all(abs(count - sums[0][name]) <= 1 for name, count in one.items())
    assert len({sum(map(len, done.values())) for done in work.values()}) == 1


class Guarded(bytes):
    """Bytes that only hmac.compare_digest may compare."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a comparison whose time tells how many bytes are equal")

    __ne__ = __eq__
    __hash__ = bytes.__hash__


class Work:
    """Which functions of hashing and comparing are called, and how often with how long inputs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: Counter[tuple[str, int]] = Counter()
        for module, name, at in ((hmac, "compare_digest", 0), (hmac, "digest", 1), (hashlib, "new", 1)):
            monkeypatch.setattr(module, name, partial(self._counted, name, getattr(module, name), at))

    def _counted(self, name: str, function: Callable[..., Any], at: int, *arguments: Any) -> Any:
        self.done[name, len(arguments[at])] += 1
        return function(*arguments)

    def take(self) -> Counter[tuple[str, int]]:
        done, self.done = self.done, Counter()
        return done


@pytest.mark.parametrize("mechanism", MECHANISMS.values())
def test_x2_scram_works_and_compares_as_much_for_every_user(
    mechanism: ScramMechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = users("al", mechanism=mechanism)
    for record in known._store.image().scram_credentials.values():  # type: ignore[union-attr]
        record.stored_key, record.server_key = Guarded(record.stored_key), Guarded(record.server_key)
    work, works = Work(monkeypatch), []
    for user, password in (("al", "wrong"), ("al", "pencil"), ("bo", "pencil")):
        client = exchange(
            mechanism.name, {"sasl_plain_username": user, "sasl_plain_password": password}, host="h", nonce="c"
        )
        server = ScramExchange(mechanism, known, "server")
        final = client.send(server.respond(next(client)).token)
        work.take()
        server = ScramExchange(mechanism, known, "server")
        server.respond(f"n,,n={user},r=c".encode())
        if (user, password) == ("al", "pencil"):
            assert server.respond(final).user == "al"
        else:
            refused(server, final)
        works.append(work.take())
    assert works[0] == works[1] == works[2]
    assert works[0]["compare_digest", mechanism.size] == 1


def test_x2_plain_compares_digests_once_for_every_user_and_password(monkeypatch: pytest.MonkeyPatch) -> None:
    known = PlainUsers({"al": "sesame", "bo": "x"}, None)
    known._passwords = {user: Guarded(digest) for user, digest in known._passwords.items()}
    work = Work(monkeypatch)
    for token in (b"\0al\0sesame", b"\0al\0s", b"\0al\0" + b"x" * 1_000, b"\0nobody\0sesame", b"\0nobody\0x"):
        if token == b"\0al\0sesame":
            assert PlainExchange(known).respond(token).user == "al"
        else:
            refused(PlainExchange(known), token)
        assert work.take() == {("compare_digest", 32): 1}


TOKENS = st.sampled_from([FIRST, FINAL, SIGNATURE, b"", b"\0user\0pencil", FIRST + b",tokenauth=true"]) | st.binary(
    max_size=80
)


@settings(deadline=None)
@given(st.lists(TOKENS, max_size=6), st.booleans())
def test_no_order_of_messages_logs_in_without_the_proof(tokens: list[bytes], is_plain: bool) -> None:
    """Only FIRST and then FINAL, at the beginning, is a login."""
    server: Exchange = PlainExchange(PlainUsers({"user": "pencil"}, None)) if is_plain else login()
    expected = [b"\0user\0pencil"] if is_plain else [FIRST, FINAL]
    answered: list[Any] = []
    for token in tokens:
        try:
            answered.append(server.respond(token))
        except AuthenticationFailed:
            answered.append(None)
    logins = [index for index, step in enumerate(answered) if step is not None and step.user is not None]
    assert logins == ([len(expected) - 1] if tokens[: len(expected)] == expected else [])


def test_plain_checks_user_and_password() -> None:
    known = PlainUsers({"al": "open sesame", "bö": "zwölf"}, None)
    assert PlainExchange(known).respond(b"\0al\0open sesame") == (b"", "al", None, None)
    assert PlainExchange(known).respond(b"al\0al\0open sesame").user == "al"
    assert PlainExchange(known).respond("\0bö\0zwölf".encode()).user == "bö"
    for token in (b"", b"\0al", b"\0al\0", b"\0\0open sesame", b"\0al\0open", b"\0no\0open sesame", b"\0al\0x\0y",
                  b"bo\0al\0open sesame", b"\0al\0\xff", b"\0al\0" + b"x" * MAX_TOKEN_BYTES, b"\0no\0"):  # fmt: skip
        assert refused(PlainExchange(known), token)


def test_plain_can_use_scram_credentials() -> None:
    for mechanism in MECHANISMS.values():
        known = PlainUsers({"al": "sesame"}, users("bo", mechanism=mechanism))
        assert PlainExchange(known).is_slow
        assert PlainExchange(known).respond(b"\0al\0sesame").user == "al"
        assert PlainExchange(known).respond(b"\0bo\0pencil").user == "bo"
        for token in (b"\0bo\0sesame", b"\0al\0pencil", b"\0no\0pencil"):
            assert refused(PlainExchange(known), token)


def test_passwords_that_clients_may_normalize_are_not_portable() -> None:
    assert all(map(is_portable, ("pencil", "zwölf", "open sesame", "\u05d0\u05d1")))
    for text in ("a\u00adb", "\u2168", "\u00aa", "a\tb", "a\u00a0b", "zwo\u0308lf", "\u0627\u0031", "\ue000"):
        assert not is_portable(text)


def test_a_credential_hides_its_keys() -> None:
    found = users("user").find("user", SCRAM_SHA_256)[0]
    assert repr(found) == "Credential([hidden], iterations=4096)"
