"""The settings of the MinIO and S3 plug-in: the names below, after `rsm.config.`.

An unknown name gets an error that suggests the nearest one; invalid values are refused at the start, before any request
to the store. Keys come from the first of these sources that has them: the settings, `credentials.file` (the format of
`~/.aws/credentials`, read again when it changes), the environment. No representation and no message contains them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

from kbroker.config.catalogue import unknown
from kbroker.config.settings import DAY, Long, declarations, setting, settings
from kbroker.config.values import ConfigError, Secret
from kbroker.tiered.api import RemoteStorageError

PREFIX: Final = "rsm.config."
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


def _prefix_fault(text: str) -> str | None:
    """Some servers normalize `..` and empty parts."""
    names = text.strip("/")
    return (
        "expected names with single slashes between them" if {"", ".", ".."} & set(names.split("/")) and names else None
    )


@settings
class MinioSettings:
    """How to reach the store, and the limits of a call. Units: *_ms, *_bytes; keys have dots instead of underscores."""

    endpoint: str = setting("", doc="Host and port of the store, or its URL; no default.")
    bucket: str = setting("", doc="The bucket; no default.")
    bucket_create: bool = setting(False, doc="Create the bucket if it is missing, instead of failing.")
    prefix: str = setting("", check=_prefix_fault, doc="A prefix of all object names; a slash follows it.")
    region: str = setting("us-east-1", doc="The region that requests are signed for.")
    secure: bool = setting(True, doc="Use TLS; the scheme of a URL in `endpoint` sets it too.")
    ca_file: str = setting("", doc="Trusted certificates (PEM), instead of the system's.")
    access_key: str = setting("", doc="The access key.")
    secret_key: Secret = setting(Secret(""), doc="The secret key.")
    session_token: Secret = setting(Secret(""), doc="The token of temporary keys.")
    credentials_file: str = setting("", doc="A file with the keys, read again when it changes.")
    credentials_profile: str = setting("default", doc="The section of that file.")
    sign_payload: bool = setting(
        False, doc="Sign the stored data (SHA-256) in addition to their CRC-32C: a CPU second per gigabyte."
    )
    part_size_bytes: Long = setting(
        128 * MIB, at_least=SMALLEST_PART, at_most=LARGEST_PART, doc="Larger segments are sent in parts of this size."
    )
    parallel_uploads: int = setting(
        4, at_least=1, at_most=64, doc="The number of parts and indexes sent in parallel, in total."
    )
    connections_max: int = setting(32, at_least=1, at_most=1024, doc="The maximum number of open connections.")
    connect_timeout_ms: int = setting(5_000, at_least=1, at_most=DAY, doc="The timeout for a new connection.")
    read_timeout_ms: int = setting(15_000, at_least=1, at_most=DAY, doc="The timeout if the store sends nothing.")
    call_timeout_ms: int = setting(60_000, at_least=1, at_most=DAY, doc="The timeout of a call, including retries.")
    call_min_bytes_per_second: Long = setting(
        MIB, at_least=1, at_most=1 << 40, doc="Calls that move data get additional time for them at this rate."
    )
    retries: int = setting(3, at_least=0, at_most=100, doc="The maximum number of retries of a request in one call.")
    retry_backoff_ms: int = setting(100, at_least=1, at_most=DAY, doc="The wait before the first retry; it doubles.")
    retry_backoff_max_ms: int = setting(3_000, at_least=1, at_most=DAY, doc="The maximum wait between two retries.")

    def __repr__(self) -> str:
        return f"MinioSettings(endpoint={self.endpoint!r}, bucket={self.bucket!r}, prefix={self.prefix!r})"

    @classmethod
    def parse(cls, configs: Mapping[str, str]) -> MinioSettings:
        """Parse settings without the prefix `rsm.config.`. Errors: MinioConfigError."""
        known = {one.name: one for one in declarations(cls)}
        values: dict[str, Any] = {}
        try:
            for key in sorted(configs.keys() - FROM_BROKER):
                if key not in known:
                    raise unknown(key, known, prefix=PREFIX)
                values[known[key].attribute] = replace(known[key], name=PREFIX + key).parse(configs[key])
        except ConfigError as error:
            raise MinioConfigError(str(error)) from None
        _take_scheme(values)
        found = cls(**values | {"prefix": values.get("prefix", "").strip("/")})
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
