"""Addresses and signatures of requests to an S3 store: `kbroker.tiered.minio_signing`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kbroker.tiered.minio_credentials import Keys
from kbroker.tiered.minio_settings import MinioSettings
from kbroker.tiered.minio_signing import Address, sign

# The worked examples of https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
KEYS = Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
HOST = "examplebucket.s3.amazonaws.com"
TIME_MS = int(datetime(2013, 5, 24, tzinfo=UTC).timestamp() * 1000)
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
WELCOME = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"


@pytest.mark.parametrize(
    ("method", "name", "query", "headers", "signature"),
    [
        (
            "GET",
            "test.txt",
            {},
            {"range": "bytes=0-9", "x-amz-content-sha256": EMPTY},
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT",
            "test$file.text",
            {},
            {
                "date": "Fri, 24 May 2013 00:00:00 GMT",
                "x-amz-storage-class": "REDUCED_REDUNDANCY",
                "x-amz-content-sha256": WELCOME,
            },
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        (
            "GET",
            "",
            {"lifecycle": ""},
            {"x-amz-content-sha256": EMPTY},
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "GET",
            "",
            {"prefix": "J", "max-keys": "2"},
            {"x-amz-content-sha256": EMPTY},
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
)
def test_signatures_match_the_examples_of_amazon(
    method: str, name: str, query: dict[str, str], headers: dict[str, str], signature: str
) -> None:
    target = Address(HOST, "").target(name, query)
    signed = sign((method, *target), {**headers, "host": HOST}, KEYS, region="us-east-1", timestamp_ms=TIME_MS)
    assert signed["authorization"].startswith(f"AWS4-HMAC-SHA256 Credential={KEYS.access_key}/20130524/us-east-1/s3/")
    assert signed["authorization"].rpartition("Signature=")[2] == signature


def test_the_token_of_temporary_keys_is_signed() -> None:
    keys = Keys(KEYS.access_key, KEYS.secret_key, "a-token")
    headers = {"host": HOST, "x-amz-content-sha256": EMPTY}
    signed = sign(("GET", "/", ""), headers, keys, region="us-east-1", timestamp_ms=TIME_MS)
    assert signed["x-amz-security-token"] == "a-token"
    assert ";x-amz-security-token," in signed["authorization"]


@pytest.mark.parametrize(
    ("endpoint", "bucket", "host", "path"),
    [
        ("127.0.0.1:9000", "logs", "127.0.0.1:9000", "/logs"),
        ("minio:443", "logs", "minio", "/logs"),
        ("[::1]:9000", "logs", "[::1]:9000", "/logs"),
        ("s3.amazonaws.com", "logs", "logs.s3.eu-west-1.amazonaws.com", ""),
        ("s3.eu-west-1.amazonaws.com:443", "logs", "logs.s3.eu-west-1.amazonaws.com", ""),
        ("s3.dualstack.us-east-1.amazonaws.com", "logs", "logs.s3.dualstack.eu-west-1.amazonaws.com", ""),
        ("s3.cn-north-1.amazonaws.com.cn", "logs", "logs.s3.eu-west-1.amazonaws.com.cn", ""),
        ("s3-fips.us-east-1.amazonaws.com", "logs", "logs.s3-fips.us-east-1.amazonaws.com", ""),
        ("s3.amazonaws.com", "lo.gs", "s3.eu-west-1.amazonaws.com", "/lo.gs"),
        ("oss-cn-hangzhou.aliyuncs.com", "logs", "logs.oss-cn-hangzhou.aliyuncs.com", ""),
        ("s3.amazonaws.com.example.org", "logs", "s3.amazonaws.com.example.org", "/logs"),
    ],
)
def test_the_bucket_is_in_the_path_except_where_not_possible(endpoint: str, bucket: str, host: str, path: str) -> None:
    settings = MinioSettings.parse({"endpoint": endpoint, "bucket": bucket, "region": "eu-west-1"})
    assert Address.of(settings) == Address(host, path)


def test_names_and_queries_are_encoded() -> None:
    path, query = Address("minio:9000", "/logs").target("a b/ü~+$", {"prefix": "a/b +", "list-type": "2"})
    assert path == "/logs/a%20b/%C3%BC~%2B%24"
    assert query == "list-type=2&prefix=a%2Fb%20%2B"
