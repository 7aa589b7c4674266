"""AlterUserScramCredentials: set and delete SCRAM credentials (KIP-554)."""

from wire.schema import message, struct
from wire.types import bytes_, int8, int16, int32, string


@struct
class ScramCredentialDeletion:
    name: string
    mechanism: int8


@struct
class ScramCredentialUpsertion:
    name: string
    mechanism: int8
    iterations: int32
    salt: bytes_
    salted_password: bytes_


@message(api_key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsRequest:
    deletions: list[ScramCredentialDeletion]
    upsertions: list[ScramCredentialUpsertion]


@struct
class AlterUserScramCredentialsResult:
    user: string
    error_code: int16 = 0
    error_message: string | None


@message(api_key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsResponse:
    throttle_time_ms: int32 = 0
    results: list[AlterUserScramCredentialsResult]
