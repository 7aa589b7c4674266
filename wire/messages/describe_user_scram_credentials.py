"""DescribeUserScramCredentials: mechanisms and iterations of users; users None or empty means all (KIP-554)."""

from wire.schema import message, struct
from wire.types import int8, int16, int32, string


@struct
class UserName:
    name: string


@message(api_key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsRequest:
    users: list[UserName] | None


@struct
class CredentialInfo:
    mechanism: int8
    iterations: int32


@struct
class DescribeUserScramCredentialsResult:
    user: string
    error_code: int16 = 0
    error_message: string | None
    credential_infos: list[CredentialInfo]


@message(api_key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: string | None
    results: list[DescribeUserScramCredentialsResult]
