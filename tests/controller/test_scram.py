"""AlterUserScramCredentials: what is stored, and what is refused, as Apache Kafka's controller does."""

from __future__ import annotations

import pytest

from kbroker.config.sasl import SCRAM_SECRET
from kbroker.metadata.image import Image
from kbroker.metadata.snapshot import image_records
from kbroker.runtime.outcome import Outcome
from kbroker.security.sasl.scram import SCRAM_SHA_256, SCRAM_SHA_512, ScramMechanism, credential_of, salted_password
from tests.controller.cluster import Cluster
from wire.errors import ErrorCode
from wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from wire.stored.metadata import FeatureLevelRecord, UserScramCredentialRecord

SALT = b"1k2j3h"


def upsertion(
    name: str, mechanism: ScramMechanism = SCRAM_SHA_256, *, iterations: int = 4096, password: str = "pencil"
) -> ScramCredentialUpsertion:
    salted = salted_password(mechanism, password, SALT, iterations)
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism.number, iterations=iterations, salt=SALT, salted_password=salted
    )


def deletion(name: str, mechanism: ScramMechanism = SCRAM_SHA_256) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism.number)


def alter(cluster: Cluster, *changes: ScramCredentialDeletion | ScramCredentialUpsertion) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(
        deletions=[one for one in changes if isinstance(one, ScramCredentialDeletion)],
        upsertions=[one for one in changes if isinstance(one, ScramCredentialUpsertion)],
    )
    answer: AlterUserScramCredentialsResponse = cluster.ask(request)
    return {result.user: result.error_code for result in answer.results}


def test_credentials_are_set_replaced_and_deleted() -> None:
    cluster = Cluster()
    assert alter(cluster, upsertion("al"), upsertion("bo", SCRAM_SHA_512)) == {"al": 0, "bo": 0}
    assert set(cluster.image.scram_credentials) == {("al", 1), ("bo", 2)}
    alter(cluster, upsertion("al", password="pen", iterations=8192))
    stored = cluster.image.scram_credentials["al", 1]
    made = credential_of(SCRAM_SHA_256, salted_password(SCRAM_SHA_256, "pen", SALT, 8192), SALT, 8192)
    assert (stored.salt, stored.stored_key, stored.server_key, stored.iterations) == tuple(made)
    copied = Image().apply(image_records(cluster.image), offset=1, epoch=1)
    assert copied.scram_credentials == cluster.image.scram_credentials
    assert alter(cluster, deletion("al")) == {"al": 0}
    assert set(cluster.image.scram_credentials) == {("bo", 2)}


def test_no_password_reaches_the_log() -> None:
    cluster = Cluster()
    change = upsertion("al")
    alter(cluster, change)
    (decided,) = (one for one in cluster.decided if isinstance(one, UserScramCredentialRecord))
    assert change.salted_password not in repr(decided).encode("latin-1", "backslashreplace")
    assert change.salted_password not in (decided.stored_key, decided.server_key)


def test_the_first_credential_makes_the_secret_of_the_cluster() -> None:
    cluster = Cluster()
    assert alter(cluster, deletion("al")) == {"al": ErrorCode.RESOURCE_NOT_FOUND}
    assert SCRAM_SECRET not in cluster.image.broker_configs(None)
    alter(cluster, upsertion("al"))
    secret = cluster.image.broker_configs(None)[SCRAM_SECRET]
    assert len(secret) == 64
    alter(cluster, upsertion("bo"))
    alter(cluster, deletion("al"))
    assert cluster.image.broker_configs(None)[SCRAM_SECRET] == secret


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (deletion("al"), ErrorCode.RESOURCE_NOT_FOUND),
        (deletion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("al", iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("al", iterations=16_385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("al", SCRAM_SHA_256._replace(number=3)), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (
            ScramCredentialUpsertion(name="al", mechanism=1, iterations=4096, salt=b"", salted_password=b"x"),
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
        ),
    ],
)
def test_x3_an_unusable_change_is_refused(
    change: ScramCredentialDeletion | ScramCredentialUpsertion, code: ErrorCode
) -> None:
    cluster = Cluster()
    assert alter(cluster, change, upsertion("other")) == {change.name: code, "other": 0}
    assert set(cluster.image.scram_credentials) == {("other", 1)}


def test_a_user_is_changed_once_in_a_request() -> None:
    cluster = Cluster()
    alter(cluster, upsertion("al"))
    before = cluster.image
    twice = {"al": ErrorCode.DUPLICATE_RESOURCE}
    assert alter(cluster, deletion("al"), deletion("al")) == twice
    assert alter(cluster, deletion("al"), upsertion("al")) == twice
    assert alter(cluster, upsertion("al"), upsertion("al", SCRAM_SHA_512), upsertion("al")) == twice
    assert cluster.image.scram_credentials is before.scram_credentials


def test_w11_too_many_changes_are_refused_together() -> None:
    cluster = Cluster(max_records_per_decision=2)
    codes = alter(cluster, *(upsertion(name) for name in "abc"))
    assert codes == dict.fromkeys("abc", ErrorCode.POLICY_VIOLATION)
    assert not cluster.image.scram_credentials


def test_an_old_metadata_version_has_no_credentials() -> None:
    cluster = Cluster()
    cluster.commit(Outcome([FeatureLevelRecord(name="metadata.version", feature_level=10)], None))
    assert alter(cluster, upsertion("al")) == {"al": ErrorCode.UNSUPPORTED_VERSION}
