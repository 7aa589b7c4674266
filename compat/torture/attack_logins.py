"""Strangers at a listener with TLS, logins and an authorizer: what a client that has logged in waits, how long a login
takes, and the broker's memory (W9, X1, X4, X6).

    python -m compat.torture.attack_logins

Two thousand connections never complete a handshake of TLS: they say nothing, or send some bytes of the first message,
half of it, all of it, or one byte after the other. Others complete the handshake and send their login byte by byte, or
a request that is too large. All the time, some clients log in with wrong passwords as fast as they can, by PLAIN and by
SCRAM and as users who do not exist, and a user without rights produces. The bystander produces, and clients log in.

No stranger may get further: half-open connections are closed in favour of new ones, a request that is too large ends
its connection at once, and each wrong password is refused, with the same text and after the same delay for every user.
Clients that have logged in keep their connections, and no password may be in the log.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from compat.secured import PASSWORD, USER, Secured
from compat.torture.attack_connections import allow_files, drop, hold, trickle
from compat.torture.bystander import Measure, Target, client_of, frame, main, produce
from compat.waiting import until
from kbroker.client.security import tls_context
from kbroker.testing.draws import Draws
from wire.errors import ErrorCode, KafkaError
from wire.messages.metadata import MetadataRequest
from wire.messages.sasl_handshake import SaslHandshakeRequest

HALF_OPEN, SLOW, LARGE, ROUNDS = 2_000, 100, 50, 2
GUESSERS, LOGINS = 4, 10
SLOW_BYTES = 20
LONGEST_MS, LONGEST_LOGIN_MS, MEMORY_MIB = 300, 1_000, 100
MECHANISMS, USERS = ("PLAIN", "SCRAM-SHA-512"), (USER, "unknown")
GUESTS = {"guest": "password of a guest"}
WRONG = "canary of a wrong password"
KEPT, DELAY_MS, TIMEOUT_MS = 1_000, 100, 20_000
SETTINGS = {
    "connections.max.reauth.ms": "0",
    "kbroker.max.unauthenticated.connections": str(KEPT),
    "connection.failed.authentication.delay.ms": str(DELAY_MS),
    "kbroker.authentication.timeout.ms": str(TIMEOUT_MS),
}
SOON_S = 10.0
"""Much sooner than TIMEOUT_MS, which would end every stranger."""


@dataclass(slots=True)
class Strangers:
    """What those who flood the broker have met: the texts of refusals by mechanism and user, whether the guest was
    refused, and what should not have happened.
    """

    texts: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    denied: int = 0
    faults: list[str] = field(default_factory=list)


def attack(target: Target, draws: Draws) -> list[Measure]:
    """Flood it in all of these ways at once."""
    broker = target.broker
    assert isinstance(broker, Secured)
    allow_files(HALF_OPEN + SLOW + LARGE + 200)
    kept = int(broker.settings["kbroker.max.unauthenticated.connections"])
    hello, begin = first_message(), frame(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    logins_ms: list[float] = []
    target.create_topic("victim")
    with target.watched() as seen, flooded(target, broker) as strangers:
        for _ in range(ROUNDS):
            held = hold(target.address, hello, HALF_OPEN, draws)
            for connection in held[::8]:
                with contextlib.suppress(OSError):  # it may have been closed for a newer one
                    connection.sendall(hello)
            slow = [secured(target) for _ in range(SLOW)]
            for number in range(LOGINS):
                trickle(held[3 + 4 * number :: 4 * LOGINS], hello, SLOW_BYTES)
                trickle(slow[number::LOGINS], begin, SLOW_BYTES)
                logins_ms.append(login_ms(target))
            # Beside those who guess passwords at the same time.
            until(lambda: len(still_open(held)) + len(still_open(slow)) <= kept, patience_s=SOON_S)  # noqa: B023
            for number in range(LARGE):
                demand_end_after(target, struct.pack(">i", 600_000 if number % 2 else 100 << 20) + bytes(1_000))
            drop(held)
            drop(slow)
    with target.client() as client:
        assert client.ask(MetadataRequest(topics=None)).topics, "it serves clients"
    for mechanism in MECHANISMS:
        known, unknown = (strangers.texts.get((mechanism, user), set()) for user in USERS)
        assert known == unknown, f"there is one text for every failure, not {known} and {unknown}"
        assert len(known) == 1, f"every kind of wrong login was refused: {strangers.texts}"
    assert strangers.denied, "a client without rights was refused"
    log = broker.log
    strangers.faults += [secret for secret in (PASSWORD, WRONG, *GUESTS.values()) if secret in log]
    strangers.faults += [word for word in ("Traceback", " ERROR ") if word in log]
    assert not strangers.faults, strangers.faults[0]
    return [
        *seen.measures(longest_ms=LONGEST_MS, memory_mib=MEMORY_MIB),
        Measure("longest login", max(logins_ms), LONGEST_LOGIN_MS, "ms", is_timing=True),
    ]


def first_message() -> bytes:
    """The first message of a client of TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def secured(target: Target) -> ssl.SSLSocket:
    """A connection after the handshake of TLS, which has not logged in."""
    context = tls_context(target.security)
    assert context is not None
    plain = socket.create_connection(target.address, timeout=TIMEOUT_MS / 1000)
    return context.wrap_socket(plain, server_hostname=target.address[0])


def login_ms(target: Target) -> float:
    """How long a login and a first request take."""
    began = time.perf_counter()
    with target.client() as client:
        client.ask(MetadataRequest(topics=[]))
    return (time.perf_counter() - began) * 1000


def still_open(connections: list[socket.socket] | list[ssl.SSLSocket]) -> list[socket.socket | ssl.SSLSocket]:
    """Those that the broker has not closed. What it has sent of its handshake is read; it must send nothing else."""
    found: list[socket.socket | ssl.SSLSocket] = []
    for connection in connections:
        connection.setblocking(False)
        try:
            while connection.recv(65_536):
                assert not isinstance(connection, ssl.SSLSocket), "a stranger got an answer"
        except (BlockingIOError, ssl.SSLWantReadError):
            found.append(connection)
        except OSError:
            pass  # closed
        connection.settimeout(SOON_S)
    return found


def demand_end_after(target: Target, data: bytes) -> None:
    """Send bytes instead of a login; the broker must close the connection. Errors: TimeoutError if it does not."""
    with secured(target) as connection:
        connection.settimeout(SOON_S)
        try:
            connection.sendall(data)
            assert not connection.recv(100), "a stranger got an answer"
        except (ConnectionError, ssl.SSLError):
            pass


@contextlib.contextmanager
def flooded(target: Target, broker: Secured) -> Iterator[Strangers]:
    """Guess passwords, and produce without the right, during a block."""
    found, over = Strangers(), threading.Event()

    def repeat(act: Callable[[], None]) -> None:
        while not over.is_set():
            try:
                act()
            except OSError:  # the broker may close the connections of strangers
                over.wait(0.01)
            except Exception as error:  # noqa: BLE001 - a finding
                found.faults.append(repr(error))
                return

    def guess(user: str, mechanism: str) -> None:
        refusal, began = None, time.perf_counter()
        try:
            client_of(target.address, broker.own(user, WRONG, mechanism)).close()
        except KafkaError as error:
            refusal = error
        assert refusal is not None, f"{user} has logged in with a wrong password"
        assert refusal.code == ErrorCode.SASL_AUTHENTICATION_FAILED, refusal
        assert time.perf_counter() - began >= DELAY_MS / 1000, "a failure was answered at once"
        found.texts.setdefault((mechanism, user), set()).add(refusal.message)

    def trespass() -> None:
        ((user, password),) = GUESTS.items()
        with client_of(target.address, broker.own(user, password)) as client:
            while not over.wait(0.001):
                try:
                    code = produce(client, "victim")
                except OSError as error:
                    raise AssertionError("a client that has logged in lost its connection") from error
                assert code == ErrorCode.TOPIC_AUTHORIZATION_FAILED, code
                found.denied += 1

    acts: list[Callable[[], None]] = [trespass]
    for number in range(GUESSERS):
        acts.append(partial(guess, USERS[number // 2 % 2], MECHANISMS[number % 2]))
    threads = [threading.Thread(target=repeat, args=(act,), daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        over.set()
        for thread in threads:
            thread.join(TIMEOUT_MS / 1000 + SOON_S)
            if thread.is_alive():
                found.faults.append("a client still waits for an answer")


if __name__ == "__main__":
    sys.exit(main(__doc__, attack, settings=SETTINGS, guests=GUESTS))
