"""Keys that are rotated, refused, and never logged; TLS with a private certificate authority."""

from __future__ import annotations

import io
import logging
import os
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat.authority import make_authority
from compat.minio import BUCKET, MinioServer
from compat.minio_proxy import Exchange, MinioProxy, answer, silence
from compat.tiered.minio_fixtures import HASTY, admin, fails_with, is_whole, read
from kbroker.testing.remote_segments import WrittenSegment
from kbroker.tiered.api import IndexType, RemoteStorageError, RetriableRemoteStorageError, StoreMisconfigured
from kbroker.tiered.minio import MinioRemoteStorage

Write = Callable[..., WrittenSegment]
MakeManager = Callable[..., MinioRemoteStorage]


def write_keys(path: Path, access_key: str, secret_key: str) -> None:
    path.write_text(f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret_key}\n")


def test_m3_rotated_keys_work_without_a_restart(
    make_manager: MakeManager, minio_server: MinioServer, proxy: MinioProxy, tmp_path: Path, write: Write
) -> None:
    """The store's keys change first: every call is refused, with a retriable error. Then the file changes."""
    keys, segment = tmp_path / "keys", write()
    write_keys(keys, minio_server.access_key, minio_server.secret_key)
    manager = make_manager(access_key="", secret_key="", credentials_file=str(keys))
    manager.copy_log_segment_data(segment.metadata, segment.data)
    minio_server.stop()
    minio_server.secret_key = "rotated-" + minio_server.secret_key[:20]
    minio_server.start()
    proxy.requests.clear()
    for call in (
        lambda: manager.copy_log_segment_data(segment.metadata, segment.data),
        lambda: read(manager, segment),
        lambda: manager.fetch_index(segment.finished, IndexType.OFFSET),
        lambda: manager.delete_log_segment_data(segment.finished),
    ):
        with fails_with(StoreMisconfigured, match="answered 403 SignatureDoesNotMatch"):
            call()
    assert len(proxy.requests) == len(set(proxy.requests)), "a request refused with the same keys is not repeated"
    write_keys(keys, minio_server.access_key, minio_server.secret_key)
    assert is_whole(manager, segment)


def test_m3_keys_are_read_again_in_the_middle_of_a_call(
    make_manager: MakeManager, minio_server: MinioServer, proxy: MinioProxy, tmp_path: Path, write: Write
) -> None:
    """The changed file has the same time and size as before: the refusal triggers reading it again."""
    keys, segment = tmp_path / "keys", write()
    good, wrong = minio_server.secret_key, "x" * len(minio_server.secret_key)
    write_keys(keys, minio_server.access_key, good)
    manager = make_manager(access_key="", secret_key="", credentials_file=str(keys))
    manager.copy_log_segment_data(segment.metadata, segment.data)
    then = time.time() - 1000
    write_keys(keys, minio_server.access_key, wrong)
    os.utime(keys, (then, then))
    with fails_with(StoreMisconfigured, match="403"):
        read(manager, segment)
    write_keys(keys, minio_server.access_key, good)
    os.utime(keys, (then, then))
    assert read(manager, segment) == segment.log
    assert proxy.count("GET", ".log") == 3


def test_m3_forbidden_and_missing_objects_are_distinguished(
    manager: MinioRemoteStorage, proxy: MinioProxy, write: Write
) -> None:
    segment = write()
    manager.copy_log_segment_data(segment.metadata, segment.data)
    for status, code in ((403, "AccessDenied"), (401, "Unauthorized"), (403, "RequestTimeTooSkewed")):
        proxy.rule(answer(status, code))
        with fails_with(StoreMisconfigured, match=f"{status} {code}"):
            read(manager, segment)
        proxy.heal()
    assert is_whole(manager, segment)


def test_k15_keys_appear_in_no_message_traceback_or_log(
    make_manager: MakeManager, proxy: MinioProxy, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even if the store, or a proxy in front of it, repeats the request in its answer."""
    canaries = {"access_key": "CANARYACCESS", "secret_key": "canary-secret-1b2c", "session_token": "canary-token-3d4e"}
    manager, segment = make_manager(**canaries), write()
    reported: list[str] = [repr(manager), str(vars(manager))]
    caplog.set_level(logging.DEBUG)

    def echo(kind: str) -> Callable[[Exchange], None]:
        def act(exchange: Exchange) -> None:
            for _ in exchange.body():
                pass
            sent = " ".join([*exchange.headers.values(), *canaries.values()])
            body = f"<Error><Code>Odd</Code><Message>{sent}</Message></Error>" if kind.endswith("xml") else sent
            exchange.reply(400, {"Content-Type": kind}, body.encode())

        return act

    actions = [echo("application/xml"), echo("text/plain"), answer(403, "AccessDenied"), answer(500, "x"), silence]
    for action in [None, *actions]:
        if action is not None:
            proxy.rule(action)
        for call in (
            lambda: manager.copy_log_segment_data(segment.metadata, segment.data),
            lambda: read(manager, segment),
            lambda: manager.delete_log_segment_data(segment.metadata),
            lambda: list(manager.list_objects()),
        ):
            with pytest.raises(RemoteStorageError) as caught:
                call()
            out = io.StringIO()
            traceback.print_exception(caught.value, file=out)
            reported += [str(caught.value), repr(caught.value), out.getvalue()]
        proxy.heal()
    reported.append(caplog.text)
    assert len(reported) > 70
    for canary in canaries.values():
        assert [text for text in reported if canary in text] == []


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an authority, ca.pem, and its certificate for 127.0.0.1: server.pem, server.key."""
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure_server(
    minio_server: MinioServer, authority: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MinioServer]:
    """A server that accepts only TLS."""
    assert minio_server.process is not None
    server = MinioServer(tmp_path_factory.mktemp("secure"), tls=(authority / "server.pem", authority / "server.key"))
    server.start()
    yield server
    server.kill()


def configured(server: MinioServer, **settings: str) -> MinioRemoteStorage:
    manager = MinioRemoteStorage(environment={})
    manager.configure({**server.settings(**{"bucket_create": "true", **settings}), **HASTY})
    return manager


@pytest.mark.parametrize("sign", ["false", "true"])
def test_segments_travel_by_tls_with_a_private_authority(
    secure_server: MinioServer, authority: Path, write: Write, sign: str
) -> None:
    part = str(5 << 20)
    manager = configured(secure_server, ca_file=str(authority / "ca.pem"), part_size_bytes=part, sign_payload=sign)
    for segment in (write(), write(batches=50, value_bytes=120_001)):
        manager.copy_log_segment_data(segment.metadata, segment.data)
        assert is_whole(manager, segment)
        manager.delete_log_segment_data(segment.finished)
    assert list(manager.list_objects()) == []
    manager.close()


def test_a_store_with_an_untrusted_certificate_receives_nothing(secure_server: MinioServer, write: Write) -> None:
    manager, segment = configured(secure_server), write()
    with fails_with(RetriableRemoteStorageError, match="CERTIFICATE_VERIFY_FAILED"):
        manager.copy_log_segment_data(segment.metadata, segment.data)
    manager.close()


def test_tls_and_plain_text_do_not_mix(
    secure_server: MinioServer, minio_server: MinioServer, authority: Path, write: Write
) -> None:
    segment = write()
    plain_at_secure = configured(secure_server, endpoint=f"http://127.0.0.1:{secure_server.port}")
    with fails_with(RemoteStorageError, match="answered 400"):
        plain_at_secure.copy_log_segment_data(segment.metadata, segment.data)
    plain_at_secure.close()
    at_plain = f"https://127.0.0.1:{minio_server.port}"
    secure_at_plain = configured(minio_server, endpoint=at_plain, ca_file=str(authority / "ca.pem"))
    with fails_with(RetriableRemoteStorageError, match="SSL|TLS|ssl"):
        secure_at_plain.copy_log_segment_data(segment.metadata, segment.data)
    secure_at_plain.close()


def test_the_store_checks_the_signed_payload(
    make_manager: MakeManager, minio_server: MinioServer, write: Write, prefix: str
) -> None:
    """With `sign.payload` the store checks the body against its SHA-256; without, only against its CRC-32C."""
    segment = write()
    for sign in ("true", "false"):
        manager = make_manager(sign_payload=sign)
        manager.copy_log_segment_data(segment.metadata, segment.data)
        assert is_whole(manager, segment)
    assert len(list(admin(minio_server).list_objects(BUCKET, prefix=f"{prefix}/", recursive=True))) == 6
