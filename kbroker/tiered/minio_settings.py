"""The settings of the MinIO and S3 plug-in: the names below, after `rsm.config.`.

An unknown name gets an error that suggests the nearest one; invalid values are refused at the start, before any request
to the store. Keys come from the first of these sources that has them: the settings, `credentials.file` (the format of
`~/.aws/credentials`, read again when it changes), the environment. No representation and no message contains them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from kbroker.config.values import as_boolean
from kbroker.tiered.api import RemoteStorageError

MIB: Final = 1 << 20
SMALLEST_PART: Final = 5 * MIB  # S3's minimum for all parts but the last
LARGEST_PART: Final = 5 << 30
MOST_PARTS: Final = 10_000

FROM_BROKER: Final = frozenset({"log.dir", "broker.id", "cluster.id"})
"""The settings that kbroker adds for every storage manager."""

_ENDPOINT: Final = re.compile(r"(\[[\w:.%]+\]|[\w-]+(\.[\w-]+)*\.?)(:\d{1,5})?", re.ASCII)

KEYS_IN_ENVIRONMENT: Final = (
    ("KBROKER_MINIO_ACCESS_KEY", "KBROKER_MINIO_SECRET_KEY", "KBROKER_MINIO_SESSION_TOKEN"),
    ("MINIO_ACCESS_KEY", "MINIO_SECRET_KEY", "MINIO_SESSION_TOKEN"),
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
)
"""Names of access key, secret key and session token; the first line with both keys set is used."""


class MinioConfigError(RemoteStorageError, ValueError):
    """An invalid setting; the message names it, but never shows the value of a secret one."""


def _boolean(text: str) -> bool:
    if (flag := as_boolean(text)) is None:
        raise ValueError("expected true or false")
    return flag


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise ValueError(f"expected {least} to {most}")
        return value

    return parse


def _prefix(text: str) -> str:
    """Strip slashes at both ends; `..` and empty parts, which some servers normalize, are refused."""
    parts = text.strip("/").split("/") if text.strip("/") else []
    if any(part in {"", ".", ".."} for part in parts):
        raise ValueError("expected names with single slashes between them")
    return "/".join(parts)


def _setting(parse: Callable[[str], Any], default: Any, doc: str, *, secret: bool = False) -> Any:
    metadata = {"parse": parse, "doc": doc, "secret": secret}
    return field(default=default, repr=not secret, metadata=metadata)


_TIME = _number(1, 24 * 3600 * 1000)


@dataclass(frozen=True, kw_only=True, slots=True)
class MinioSettings:
    """How to reach the store, and the limits of a call. Units: *_ms, *_bytes; keys have dots instead of underscores."""

    endpoint: str = _setting(str, "", "Host and port of the store, or its URL; no default.")
    bucket: str = _setting(str, "", "The bucket; no default.")
    bucket_create: bool = _setting(_boolean, False, "Create the bucket if it is missing, instead of failing.")
    prefix: str = _setting(_prefix, "", "A prefix of all object names; a slash follows it.")
    region: str = _setting(str, "us-east-1", "The region that requests are signed for.")
    secure: bool = _setting(_boolean, True, "Use TLS; the scheme of a URL in `endpoint` sets it too.")
    ca_file: str = _setting(str, "", "Trusted certificates (PEM), instead of the system's.")
    access_key: str = _setting(str, "", "The access key.", secret=True)
    secret_key: str = _setting(str, "", "The secret key.", secret=True)
    session_token: str = _setting(str, "", "The token of temporary keys.", secret=True)
    credentials_file: str = _setting(str, "", "A file with the keys, read again when it changes.")
    credentials_profile: str = _setting(str, "default", "The section of that file.")
    sign_payload: bool = _setting(
        _boolean, False, "Sign the stored data (SHA-256) in addition to their CRC-32C: a CPU second per gigabyte."
    )
    part_size_bytes: int = _setting(
        _number(SMALLEST_PART, LARGEST_PART), 128 * MIB, "Larger segments are sent in parts of this size."
    )
    parallel_uploads: int = _setting(_number(1, 64), 4, "The number of parts and indexes sent in parallel, in total.")
    connections_max: int = _setting(_number(1, 1024), 32, "The maximum number of open connections.")
    connect_timeout_ms: int = _setting(_TIME, 5_000, "The timeout for a new connection.")
    read_timeout_ms: int = _setting(_TIME, 15_000, "The timeout if the store sends nothing.")
    call_timeout_ms: int = _setting(_TIME, 60_000, "The timeout of a call, including retries.")
    call_min_bytes_per_second: int = _setting(
        _number(1, 1 << 40), MIB, "Calls that move data get additional time for them at this rate."
    )
    retries: int = _setting(_number(0, 100), 3, "The maximum number of retries of a request in one call.")
    retry_backoff_ms: int = _setting(_TIME, 100, "The wait before the first retry; it doubles.")
    retry_backoff_max_ms: int = _setting(_TIME, 3_000, "The maximum wait between two retries.")

    @classmethod
    def parse(cls, configs: Mapping[str, str]) -> MinioSettings:
        """Parse settings without the prefix `rsm.config.`. Errors: MinioConfigError."""
        values: dict[str, Any] = {}
        for key, text in configs.items():
            if key in FROM_BROKER:
                continue
            declared = cls.__dataclass_fields__.get(key.replace(".", "_")) if "_" not in key else None
            if declared is None:
                raise MinioConfigError(f"Unknown setting rsm.config.{key}{_nearest(key)}")
            try:
                values[declared.name] = declared.metadata["parse"](text)
            except ValueError as error:
                detail = "" if declared.metadata["secret"] else f" {text!r}: {error}"
                raise MinioConfigError(f"Invalid value of rsm.config.{key}{detail}") from None
        _take_scheme(values)
        found = cls(**values)
        found._check()
        return found

    def _check(self) -> None:
        for key in ("endpoint", "bucket"):
            if not getattr(self, key):
                raise MinioConfigError(f"rsm.config.{key} is required")
        if not _ENDPOINT.fullmatch(self.endpoint):  # which may contain keys by mistake
            raise MinioConfigError("rsm.config.endpoint is host:port, or http:// or https:// and host:port")
        if bool(self.access_key) != bool(self.secret_key):
            raise MinioConfigError("rsm.config.access.key and rsm.config.secret.key go together")
        if self.session_token and not self.access_key:
            raise MinioConfigError("rsm.config.session.token goes with rsm.config.access.key")
        if self.access_key and self.credentials_file:
            raise MinioConfigError("rsm.config.access.key and rsm.config.credentials.file exclude each other")

    def part_size(self, size: int) -> int:
        """The size of the parts of an object of `size` bytes, large enough to respect the limit of 10,000 parts."""
        least = -(-size // (MOST_PARTS * MIB)) * MIB
        return max(self.part_size_bytes, least)


def setting_names() -> dict[str, str]:
    """The description of each key without its prefix, for documentation."""
    return {_key(name): declared.metadata["doc"] for name, declared in MinioSettings.__dataclass_fields__.items()}


def _key(name: str) -> str:
    return name.replace("_", ".")


def _nearest(key: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415  (only needed for an error)

    near = get_close_matches(key, [_key(name) for name in MinioSettings.__dataclass_fields__], n=1, cutoff=0.6)
    return f"; did you mean rsm.config.{near[0]}?" if near else ""


def _take_scheme(values: dict[str, Any]) -> None:
    """Reduce a URL to host:port. Errors show no part of it, because it may contain keys."""
    endpoint = values.get("endpoint", "")
    if "://" in endpoint:
        parts = urlsplit(endpoint)
        if parts.scheme not in {"http", "https"} or parts.path not in {"", "/"} or parts.query or parts.fragment:
            raise MinioConfigError("rsm.config.endpoint is host:port, or http:// or https:// and host:port")
        secure = parts.scheme == "https"
        if values.get("secure", secure) != secure:
            raise MinioConfigError(f"rsm.config.secure contradicts {parts.scheme}:// of rsm.config.endpoint")
        values["endpoint"], values["secure"] = parts.netloc, secure
    if "@" in values.get("endpoint", ""):
        raise MinioConfigError("rsm.config.endpoint takes no keys; see rsm.config.access.key and credentials.file")
