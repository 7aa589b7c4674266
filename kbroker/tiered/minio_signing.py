"""The address and the signature of a request to an S3 store.

Source  AWS Signature Version 4, https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from kbroker.tiered.minio_credentials import Keys
from kbroker.tiered.minio_settings import MinioSettings

UNSIGNED_PAYLOAD: Final = "UNSIGNED-PAYLOAD"
_AMAZON: Final = re.compile(r"^(s3\.(?:dualstack\.)?)(?:[a-z0-9-]+\.)?(amazonaws\.com(?:\.cn)?(?::\d+)?)$")
_BUCKET_IN_HOST: Final = re.compile(r"s3[^:]*\.amazonaws\.com(\.cn)?(:\d+)?|[^:]*\.?aliyuncs\.com(:\d+)?")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a bucket is: the host, with its port unless that is the default, and the path that all names are below.

    Amazon and Aliyun want the bucket in the host name, unless its dots would not match their certificate.
    """

    host: str
    path: str

    @classmethod
    def of(cls, settings: MinioSettings) -> Address:
        host = settings.endpoint.removesuffix(":443" if settings.secure else ":80")
        host = _AMAZON.sub(rf"\g<1>{settings.region}.\g<2>", host)
        if _BUCKET_IN_HOST.fullmatch(host) and not (settings.secure and "." in settings.bucket):
            return cls(f"{settings.bucket}.{host}", "")
        return cls(host, f"/{settings.bucket}")

    def target(self, name: str, query: Mapping[str, str]) -> tuple[str, str]:
        """The encoded path and query for an object, or for the bucket if the name is empty."""
        path = self.path + (f"/{quote(name)}" if name else "")
        return path or "/", "&".join(f"{quote(key, safe='')}={quote(query[key], safe='')}" for key in sorted(query))


def sign(
    request: tuple[str, str, str], headers: Mapping[str, str], keys: Keys, *, region: str, timestamp_ms: int
) -> dict[str, str]:
    """The headers with those that authenticate the request.

    Shape  request is the method and the encoded path and query; headers have lower-case names, and among them are
           `host` and `x-amz-content-sha256`
    """
    time = datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    signed = {**headers, "x-amz-date": time}
    if keys.session_token:
        signed["x-amz-security-token"] = keys.session_token
    names = sorted(signed)
    lines = [*request, *(f"{name}:{signed[name]}" for name in names), "", ";".join(names)]
    canonical = "\n".join([*lines, signed["x-amz-content-sha256"]])
    scope = [time[:8], region, "s3", "aws4_request"]
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    signature = f"AWS4{keys.secret_key}".encode()
    for text in (*scope, f"AWS4-HMAC-SHA256\n{time}\n{'/'.join(scope)}\n{digest}"):
        signature = hmac.digest(signature, text.encode(), "sha256")
    signed["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access_key}/{'/'.join(scope)}, "
        f"SignedHeaders={';'.join(names)}, Signature={signature.hex()}"
    )
    return signed
