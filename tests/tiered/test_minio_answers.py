"""The MinIO plug-in against a server that plays a script: retries, classified errors, and changed keys."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

import pytest

from kbroker.runtime.disk import RealDisk
from kbroker.runtime.env import RealEnv
from kbroker.tiered.api import RemoteStorageError, StoreMisconfigured
from kbroker.tiered.minio import MinioRemoteStorage
from kbroker.tiered.minio_credentials import KeySource
from kbroker.tiered.minio_objects import Objects
from kbroker.tiered.minio_settings import MinioSettings

CANARY = "canary-3f9c7d2e"
Script = Callable[[str, str, str], tuple[int, str]]


@contextmanager
def answering(script: Script) -> Iterator[str]:
    """A server on this address whose answers are `script(method, target, access key)`: status and body."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found = re.search(r"Credential=([^/]*)", self.headers["authorization"])
            status, body = script(self.command, self.path, found[1] if found else "")
            self.send_response_only(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_DELETE = answer  # noqa: N815

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def settings(endpoint: str, **more: str) -> dict[str, str]:
    least = {"endpoint": endpoint, "bucket": "b", "secure": "false", "retry.backoff.ms": "1", "call.timeout.ms": "5000"}
    return {**least, **{name.replace("_", "."): value for name, value in more.items()}}


@contextmanager
def configured(endpoint: str, **more: str) -> Iterator[MinioRemoteStorage]:
    manager = MinioRemoteStorage()
    try:
        manager.configure(settings(endpoint, **more))
        yield manager
    finally:
        manager.close()


def error(code: str) -> str:
    return f"<Error><Code>{code}</Code><Message>as told</Message></Error>"


def listing(*names: str, encoded: bool = True) -> str:
    encoding = "<EncodingType>url</EncodingType>" if encoded else ""
    entries = "".join(
        f"<Contents><Key>{name}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
        for name in names
    )
    return f"<ListBucketResult>{encoding}{entries}</ListBucketResult>"


def write_keys(path: Path, access_key: str) -> None:
    """Always the same size and time, so that the change cannot be seen from outside."""
    path.write_text(f"[default]\naws_access_key_id={access_key}\naws_secret_access_key={CANARY}\n")
    os.utime(path, (1000, 1000))


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidToken", "TokenRefreshRequired"])
def test_refused_keys_with_status_400_are_read_again(tmp_path: Path, code: str) -> None:
    file = tmp_path / "credentials"
    write_keys(file, "old")

    def script(_method: str, _target: str, access_key: str) -> tuple[int, str]:
        return (200, listing()) if access_key == "new" else (400, error(code))

    with answering(script) as endpoint, configured(endpoint, credentials_file=str(file)) as manager:
        with pytest.raises(StoreMisconfigured, match=code):
            manager.check_store()
        write_keys(file, "new")
        manager.check_store()


@pytest.mark.parametrize(("status", "code"), [(400, "AuthorizationHeaderMalformed"), (301, "PermanentRedirect")])
def test_a_wrong_region_is_an_error_of_the_settings(status: int, code: str) -> None:
    keys = {"access_key": "k", "secret_key": "s"}
    with (
        answering(lambda *_: (status, error(code))) as endpoint,
        configured(endpoint, **keys) as manager,
        pytest.raises(StoreMisconfigured, match=rf"{code}.*rsm.config.region"),
    ):
        manager.check_store()


def test_keys_that_another_thread_has_read_are_retried(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    write_keys(file, "old")
    found = MinioSettings.parse(settings("127.0.0.1:1", credentials_file=str(file)))
    source = KeySource(found, environment={}, disk=RealDisk())

    def script(_method: str, _target: str, access_key: str) -> tuple[int, str]:
        if access_key == "new":
            return 200, listing()
        write_keys(file, "new")
        source.read_again()  # another request is refused at the same time
        return 403, error("InvalidAccessKeyId")

    with answering(script) as endpoint:
        found = MinioSettings.parse(settings(endpoint, credentials_file=str(file)))
        objects = Objects(found, source, clock=RealEnv.now_ns, wall_clock=RealEnv.timestamp_ms)
        try:
            objects.check()
        finally:
            objects.close()


@pytest.mark.parametrize("name", ["access_key", "session_token"])
@pytest.mark.parametrize("character", ["\n", "\x00", "\u20ac"])
def test_a_key_that_no_header_can_carry_is_refused(name: str, character: str) -> None:
    keys = {"access_key": "a", "secret_key": "s", "session_token": "t", name: f"{CANARY}{character}{CANARY}"}
    with pytest.raises(RemoteStorageError) as caught, configured("127.0.0.1:1", **keys):
        pass
    assert CANARY not in str(caught.value)


def test_keys_from_the_environment_lose_a_line_end() -> None:
    def script(_method: str, _target: str, access_key: str) -> tuple[int, str]:
        return (200, listing()) if access_key == "key" else (403, error("InvalidAccessKeyId"))

    environment = {"AWS_ACCESS_KEY_ID": "key\n", "AWS_SECRET_ACCESS_KEY": "s\n", "AWS_SESSION_TOKEN": "t\n"}
    with answering(script) as endpoint:
        manager = MinioRemoteStorage(environment=environment)
        manager.configure(settings(endpoint))
        manager.check_store()
        manager.close()


@pytest.mark.parametrize("endpoint", ["minio:9000/path", "minio:port", "mi nio:9000", "minio:9000/"])
def test_an_endpoint_that_is_no_host_and_port_is_refused(endpoint: str) -> None:
    with pytest.raises(RemoteStorageError, match=r"rsm\.config\.endpoint"), configured(endpoint, access_key="k"):
        pass


def test_certificates_that_cannot_be_read_are_an_error_of_the_settings(tmp_path: Path) -> None:
    missing = str(tmp_path / "ca.pem")
    more = {"secure": "true", "ca_file": missing, "access_key": "k", "secret_key": "s"}
    with (
        configured("127.0.0.1:1", **more) as manager,
        pytest.raises(StoreMisconfigured, match=r"rsm\.config\.ca\.file"),
    ):
        manager.check_store()


def test_a_list_that_does_not_go_on_ends_with_an_error() -> None:
    """Some stores ignore where a list shall begin."""
    keys = {"access_key": "k", "secret_key": "s"}
    with (
        answering(lambda *_: (200, listing("a", "b"))) as endpoint,
        configured(endpoint, **keys) as manager,
        pytest.raises(RemoteStorageError, match="listing"),
    ):
        list(islice(manager.list_objects(), 5))


def test_names_are_decoded_only_if_the_store_encoded_them() -> None:
    keys = {"access_key": "k", "secret_key": "s"}
    for encoded, expected in [(True, "a b/c"), (False, "a+b%2Fc")]:

        def script(_method: str, target: str, _key: str, encoded: bool = encoded) -> tuple[int, str]:
            return 200, listing(*([] if "start-after" in target else ["a+b%2Fc"]), encoded=encoded)

        with answering(script) as endpoint, configured(endpoint, **keys) as manager:
            assert [stored.name for stored in manager.list_objects()] == [expected]


def test_an_upload_that_is_already_aborted_does_not_keep_the_next() -> None:
    aborted: list[str] = []

    def script(method: str, target: str, _key: str) -> tuple[int, str]:
        if method == "GET":
            uploads = "".join(f"<Upload><Key>n</Key><UploadId>{name}</UploadId></Upload>" for name in "12")
            return 200, f"<ListMultipartUploadsResult>{uploads}</ListMultipartUploadsResult>"
        aborted.append(target)
        return (404, error("NoSuchUpload")) if "uploadId=1" in target else (204, "")

    with answering(script) as endpoint:
        found = MinioSettings.parse(settings(endpoint, access_key="k", secret_key="s"))
        source = KeySource(found, environment={}, disk=RealDisk())
        objects = Objects(found, source, clock=RealEnv.now_ns, wall_clock=RealEnv.timestamp_ms)
        try:
            objects.abort_uploads("n", objects.deadline("deleting n"))
        finally:
            objects.close()
    assert aborted == ["/b/n?uploadId=1", "/b/n?uploadId=2"]
