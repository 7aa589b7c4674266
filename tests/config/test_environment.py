"""`KAFKA_*` variables are mapped to settings as in the apache/kafka image."""

from __future__ import annotations

import pytest

from kbroker.config import Settings
from kbroker.config.environment import from_environment, setting_name


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("KAFKA_LOG_RETENTION_MS", "log.retention.ms"),
        ("KAFKA_A__B", "a_b"),
        ("KAFKA_A___B", "a-b"),
        ("KAFKA_A_B__C___D", "a.b_c-d"),
    ],
)
def test_underscores_stand_for_dots_underscores_and_dashes(variable: str, name: str) -> None:
    assert setting_name(variable) == name


def test_other_variables_are_ignored_and_unknown_settings_cause_warnings() -> None:
    found, warnings = from_environment(
        {
            "PATH": "/bin",
            "KAFKA_HEAP_OPTS": "-Xmx1g",
            "KAFKA_LOG4J_ROOT_LOGLEVEL": "INFO",
            "KAFKA_NUM_PARTITIONS": "3",
            "KAFKA_NUM_PARTITION": "4",
        }
    )
    assert found == {"num.partitions": "3"}
    assert warnings == ["KAFKA_NUM_PARTITION is ignored: Unknown setting num.partition; did you mean num.partitions?"]


@pytest.mark.parametrize(
    ("options", "file"),
    [
        ("-Xmx1g -Djava.security.auth.login.config=/etc/kafka/jaas.conf -Da=b", "/etc/kafka/jaas.conf"),
        ("'-Djava.security.auth.login.config=/etc/jaas.conf'", "/etc/jaas.conf"),
        ('-Djava.security.auth.login.config="/etc/my jaas.conf"', "/etc/my jaas.conf"),
        ("-Djava.security.krb5.conf=/etc/krb5.conf", None),
    ],
)
def test_the_file_of_login_modules_comes_from_javas_options(options: str, file: str | None) -> None:
    found = from_environment({"KAFKA_OPTS": options})
    assert found == ({} if file is None else {"kbroker.jaas.file": file}, [])


def test_the_environment_is_read_only_if_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "9")
    assert Settings.load().log.num_partitions == 1
