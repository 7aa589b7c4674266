"""Precedence of the sources of settings, and errors and warnings about settings."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kbroker.config import ConfigError, Settings
from kbroker.config.profiles import PROFILES

STOCK_FILE = b"""\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.request.max.bytes=104857600
log.dirs=/var/lib/kafka/data
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.min.isr=1
log.segment.bytes=1073741824
"""

# config/broker.properties of Apache Kafka 4, without comments.
STOCK_BROKER_FILE = b"""\
process.roles=broker
node.id=2
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://localhost:9092
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-broker-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def test_the_strongest_layer_that_has_a_key_gives_its_value() -> None:
    def partitions(**layers: object) -> int:
        return Settings.load(**layers).log.num_partitions  # type: ignore[arg-type]

    defaults, file = {"num.partitions": "2"}, b"num.partitions=3"
    environment, overrides = {"KAFKA_NUM_PARTITIONS": "4"}, ["num.partitions=5"]
    assert partitions() == 1
    assert partitions(defaults=defaults) == 2
    assert partitions(defaults=defaults, file=file) == 3
    assert partitions(defaults=defaults, file=file, environment=environment) == 4
    assert partitions(defaults=defaults, file=file, environment=environment, overrides=overrides) == 5


def test_dynamic_settings_override_static_and_broker_overrides_cluster() -> None:
    static = Settings.load(b"message.max.bytes=1000")
    assert static.with_dynamic({"message.max.bytes": "2000"}, {}).log.message_max_bytes == 2000
    both = static.with_dynamic({"message.max.bytes": "2000"}, {"message.max.bytes": "3000"})
    assert both.log.message_max_bytes == 3000
    assert both.with_dynamic({}, {}) == static


def test_both_cleanup_policies_apply_together() -> None:
    loaded = Settings.load(b"log.cleanup.policy=compact,delete")
    assert loaded.log.log_cleanup_policy == ("compact", "delete")
    assert not any("compact" in warning for warning in loaded.warnings)


def test_an_unusable_stored_dynamic_setting_is_ignored_with_a_warning() -> None:
    settings = Settings.load().with_dynamic(
        {"message.max.bytes": "x", "sasl.enabled.mechanisms": "PLAIN", "node.id": "7", "nobodys": "1"},
        {"log.cleanup.policy": "shred"},
    )
    assert settings.log == Settings.load().log
    assert settings.node_id == 1
    assert len(settings.warnings) == 5


def test_kafkas_own_file_causes_no_warnings() -> None:
    settings = Settings.load(STOCK_FILE)
    assert settings.warnings == ()
    assert [str(one) for one in settings.listeners.bound] == ["PLAINTEXT://:9092"]
    assert [str(one) for one in settings.listeners.advertised] == ["PLAINTEXT://localhost:9092"]
    assert settings.data_directory == "/var/lib/kafka/data"


def test_kafkas_own_file_of_a_broker_is_accepted() -> None:
    settings = Settings.load(STOCK_BROKER_FILE)
    assert settings.warnings == ()
    assert (settings.node_id, settings.server.is_controller) == (2, False)
    assert settings.listeners.controller_name == "CONTROLLER"


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("log.retenton.ms", "log.retention.ms"),
        ("num.partition", "num.partitions"),
        ("kbroker.max.open.file", "kbroker.max.open.files"),
    ],
)
def test_the_error_for_a_misspelt_key_suggests_the_nearest(key: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"Unknown setting {key}; did you mean {nearest}"):
        Settings.load(f"{key}=1".encode())
    with pytest.raises(ConfigError, match=f"did you mean {nearest}"):
        Settings.load(overrides=[f"{key}=1"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("num.partitions=0", "Invalid value 0 for configuration num.partitions: Value must be at least 1"),
        ("num.partitions=many", "Invalid value many for configuration num.partitions: Not a number of type INT"),
        ("log.dirs=/a,/b", "exactly one log directory"),
        ("log.dirs=", "exactly one log directory"),
        ("process.roles=", "a node is broker, controller, or both"),
        ("process.roles=voter", "String must be one of: broker, controller"),
        ("authorizer.class.name=x", "kbroker has no Java; the only authorizer that it has is org.apache.kafka"),
        ("remote.log.storage.manager.class.path=/lib/*", "Plug-ins are Python packages"),
        ("remote.log.storage.manager.impl.prefix=mine.", "prefixes of plug-in settings are fixed"),
        ("remote.log.storage.manager.class.name=", "String must be non-empty"),
        ("controller.quorum.voters=1@a:1,2@b:1", "2@b is not this node"),
        ("replica.lag.time.max.ms=499", "replica.fetch.wait.max.ms should always be less than or equal to"),
        ("controller.quorum.bootstrap.servers=a:1", "a:1 is not this node's own controller listener"),
        ("zookeeper.connect=localhost", "was removed in Apache Kafka 4.0"),
        ("leader.replication.throttled.rate=1", "can only be set while the broker runs"),
        ("listener.name.plaintext.max.connections=1", "only those of security are implemented"),
        ("node.id=1\nbroker.id=2", "node.id=1 and broker.id=2 are the same setting"),
        ("max.connections.per.ip=0", "can be zero only if max.connections.per.ip.overrides"),
        ("log.retention.minutes=0", "must be unlimited"),
        ("log.roll.ms=0", "Value must be at least 1"),
        ("log.roll.jitter.ms=-1", "Value must be at least 0"),
        ("socket.send.buffer.bytes=0", "must be positive, or -1"),
    ],
)
def test_an_unsupported_setting_is_refused_with_a_reason(line: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.load(line.encode())
    assert message in str(caught.value)


def test_settings_for_an_unknown_listener_cause_a_warning() -> None:
    shared = [
        "listeners=EXTERNAL://:9092",
        "listener.security.protocol.map=EXTERNAL:SSL,OF.OTHERS:SSL",
        "inter.broker.listener.name=EXTERNAL",
    ]
    right = [
        f"listener.name.{name}.ssl.client.auth=required" for name in ("external", "of.others", "controller", "http")
    ]
    of_controllers = ["controller.listener.names=CONTROLLER"]
    assert Settings.load(overrides=[*shared, *of_controllers, *right]).warnings == ()
    wrong = [f"listener.name.{name}.ssl.client.auth=required" for name in ("EXTERNAL", "extern", "of")]
    (line,) = Settings.load(overrides=[*shared, *wrong]).warnings
    assert line.startswith(
        "listener.name.EXTERNAL.ssl.client.auth, listener.name.extern.ssl.client.auth, listener.name.of.ssl.client.auth"
        " has no effect"
    )


def test_an_override_without_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'num\.partitions' is not of the form key=value"):
        Settings.load(overrides=["num.partitions"])


def test_keys_without_effect_share_one_warning() -> None:
    settings = Settings.load(b"num.io.threads=16\nnum.network.threads=5\nbackground.threads=10\nqueued.max.requests=7")
    assert len(settings.warnings) == 2
    assert settings.warnings[0].startswith("num.io.threads=16, num.network.threads=5 has no effect: One event loop")


def test_a_prefix_of_no_mechanism_is_a_warning() -> None:
    given = [
        "listeners=EXTERNAL://:9093,CONTROLLER://:9094",
        "listener.security.protocol.map=EXTERNAL:SASL_SSL,CONTROLLER:PLAINTEXT",
        "listener.name.external.plain.connections.max.reauth.ms=1",
        "listener.name.external.sasl.enabled.mechanisms=PLAIN",
    ]
    assert not Settings.load(overrides=given).warnings
    lost = "listener.name.external.PLAIN.connections.max.reauth.ms", "listener.name.external.plane.sasl.jaas.config"
    *_, warning = Settings.load(overrides=[*given, *(f"{name}=1" for name in lost)]).warnings
    assert warning.startswith(f"{', '.join(lost)} has no effect: no mechanism")


def test_a_small_segment_works_with_a_warning() -> None:
    settings = Settings.load(b"log.segment.bytes=107370")
    assert settings.log.log_segment_bytes == 107370
    assert settings.warnings == (
        "log.segment.bytes=107370 is below Kafka's minimum of 1048576: many small files are slow",
    )


def test_broker_id_and_node_id_are_one_setting() -> None:
    assert Settings.load(b"broker.id=7").node_id == 7
    assert Settings.load(b"node.id=7").server.broker_id == 7


def test_a_files_data_directory_overrides_the_callers_default() -> None:
    defaults = {"log.dirs": "/home/me/kbroker"}
    assert Settings.load(defaults=defaults).data_directory == "/home/me/kbroker"
    assert Settings.load(b"log.dir=/srv/a", defaults=defaults).data_directory == "/srv/a"
    assert Settings.load(b"log.dir=/srv/a\nlog.dirs=/srv/b", defaults=defaults).data_directory == "/srv/b"


def test_the_file_overrides_the_profile_which_causes_no_warnings() -> None:
    settings = Settings.load(b"offsets.topic.num.partitions=5", profile="test")
    assert settings.value("offsets.topic.num.partitions") == 5
    assert settings.value("transaction.state.log.num.partitions") == 1
    assert Settings.load(profile="test").warnings == ()
    assert Settings.load(profile="kafka").value("offsets.topic.replication.factor") == 3


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_has_valid_settings(profile: str) -> None:
    for key, text in PROFILES[profile].items():
        assert Settings.load(overrides=[f"{key}={text}"]).value(key) is not None


def test_the_error_for_an_unknown_profile_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Unknown profile embeded; did you mean embedded"):
        Settings.load(profile="embeded")


def test_importing_the_settings_imports_few_modules() -> None:
    """Checks the imported modules, because the time of an import depends on the machine."""
    code = "import sys; before = set(sys.modules); import kbroker.config; print(*sorted(set(sys.modules) - before))"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"difflib", "trio", "construct", "kbroker.storage", "logging"} & set(names)
