"""The command line in general: names, wrong usage, client properties and fast imports."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import kbroker.cli
from kbroker.cli import CommandFailed
from kbroker.cli._admin import client_settings
from kbroker.cli._open_files import file_warnings
from kbroker.cli._positions import pair
from kbroker.cli._topics import FILTERS, PartitionState, TopicState, include_list
from kbroker.cli.serve import announce, first_screen
from kbroker.cli.topic import parse_assignment
from kbroker.config import Settings
from kbroker.config.profiles import PROFILES
from tests.broker_process import BrokerProcess
from tests.cli.conftest import Run


def test_help_imports_neither_the_broker_nor_a_client() -> None:
    program = (
        "import sys\n"
        "from kbroker.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "costly = {'trio', 'construct', 'kafka', 'wire', 'logging'}\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & costly))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "dump-log" in done.stdout


def test_version_imports_no_command() -> None:
    program = (
        "import sys\n"
        "from kbroker.cli import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit:\n    pass\n"
        "print({'inspect', 'kbroker.cli.serve'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"kbroker {kbroker.__version__} (")
    assert done.stdout.splitlines()[1:] == ["set()"]


def test_the_garbage_collector_runs_after_the_imports_of_a_start() -> None:
    program = (
        "import gc\n"
        "from kbroker.cli import main\n"
        "assert main(['serve', '--override', 'nonsense']) == 1\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 10_000)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"


def test_every_profile_can_be_chosen(run: Run) -> None:
    """The command repeats the names, because --help must not import the settings."""
    assert f"--profile {{{','.join(PROFILES)}}}" in " ".join(run("serve", "--help").out.split())


@pytest.mark.parametrize("name", ["topic", "group", "config", "offset", "dump-log"])
def test_a_command_may_be_called_by_its_plural(run: Run, name: str) -> None:
    done = run(name, "--help")
    assert done.code == 0
    assert done.out.startswith(f"usage: kbroker {name} ")
    assert run(f"{name}s", "--help") == done


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "one of the arguments --create --delete --alter --list --describe is required"),
        (["--create", "--delete"], "not allowed with argument --create"),
        (["--create"], "--create requires --topic"),
        (["--delete"], "--delete requires --topic"),
        (["--alter", "--topic", "x"], "--alter requires --partitions"),
        (["--alter", "--topic", "x", "--config", "a=b"], "use `kbroker config` to change settings of a topic"),
        (["--delete", "--topic", "x", "--partitions", "1"], "--partitions cannot be used with --delete"),
        (["--alter", "--topic", "x", "--replication-factor", "1"], "--replication-factor cannot be used with --alter"),
        (["--list", "--if-exists"], "--if-exists cannot be used with --list"),
        (["--create", "--topic", "x", "--exclude-internal"], "--exclude-internal cannot be used with --create"),
        (["--list", "--at-min-isr-partitions"], "--at-min-isr-partitions cannot be used with --list"),
        (["--create", "--topic", "x", "--partitions", "0"], "0 is not a whole number between 1 and 2147483647"),
        (["--create", "--topic", "x", "--partitions", "many"], "'many' is not a whole number"),
        (
            ["--create", "--topic", "x", "--replication-factor", "40000"],
            "40000 is not a whole number between 1 and 32767",
        ),
        (["--create", "--topic", "x", "--config", "a"], "'a' is not of the form key=value"),
        (["--create", "--topic", "x", "--replica-assignment", "0", "--partitions", "1"], "cannot be used with --part"),
        (["--create", "--topic", "x", "--replica-assignment", "0:0"], "may not contain duplicate entries: 0"),
        (["--create", "--topic", "x", "--replica-assignment", "0:1,2"], "Partition 1 has different replication factor"),
        (["--describe", "--if-exists"], "--topic or --topic-id is required"),
    ],
)
def test_wrong_usage_of_topic_exits_with_2_and_a_reason(run: Run, words: list[str], reason: str) -> None:
    done = run("topic", *words)
    assert (done.code, done.out) == (2, "")
    assert reason in done.err


def test_a_setting_may_hold_further_equals_signs() -> None:
    assert pair(" a = b=c ") == ("a", "b=c")


def test_an_assignment_lists_the_brokers_of_each_partition() -> None:
    assert parse_assignment("0:1, 1:2") == [[0, 1], [1, 2]]


def settings_for(*servers: str, config: Path | None = None) -> dict[str, object]:
    return client_settings(argparse.Namespace(bootstrap_servers=list(servers) or None, command_config=config))


def settings_of(tmp_path: Path, properties: dict[str, str]) -> dict[str, object]:
    """The settings of a file of properties, beyond those of every command."""
    config = tmp_path / "client.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return {key: value for key, value in settings_for(config=config).items() if key not in settings_for()}


def test_brokers_come_from_flags_then_the_file_then_the_default(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("bootstrap.servers=c:3\n")
    assert settings_for("a:1, b:2", "d:4", config=config)["bootstrap_servers"] == ["a:1", "b:2", "d:4"]
    assert settings_for(config=config)["bootstrap_servers"] == ["c:3"]
    assert settings_for()["bootstrap_servers"] == ["localhost:9092"]
    with pytest.raises(CommandFailed, match="--bootstrap-server is empty"):
        settings_for(",")


@pytest.mark.parametrize("words", [["consume", "-t", "t"], ["produce", "-t", "t"], ["topic", "--list"]])
def test_an_invalid_server_is_one_error_line(run: Run, words: list[str]) -> None:
    """Each client parses the server differently and raises different errors."""
    done = run(*words, "-b", "localhost:none")
    assert done.code == 1
    assert done.err.endswith("'localhost:none' is not of the form host:port\n")
    assert len(done.err.splitlines()) == 1


def test_a_java_clients_properties_are_translated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = settings_of(
        tmp_path,
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": 'org.apache.kafka.common.security.scram.ScramLoginModule required username="al" '
            'password="s=cr;t";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/ca.pem",
            "ssl.endpoint.identification.algorithm": "",
            "request.timeout.ms": "5000",
            "sasl_plain_username": "bo",
            "metrics.recording.level": "INFO",
        },
    )
    assert found == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "bo",
        "sasl_plain_password": "s=cr;t",
        "ssl_cafile": "/ca.pem",
        "ssl_check_hostname": False,
        "request_timeout_ms": 5000,
    }
    ignored = "kbroker: ignoring the client setting metrics.recording.level, which has no effect here\n"
    assert capsys.readouterr().err == ignored


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"ssl.truststore.location": "/x.jks"}, "only PEM files, not JKS.*set ssl.truststore.type=PEM"),
        (
            {"ssl.keystore.location": "/x.p12", "ssl.keystore.type": "PKCS12"},
            "only PEM files, not PKCS12.*openssl pkcs12 .*-in /x.p12 .*set ssl.keystore.type=PEM",
        ),
        ({"sasl.jaas.config": "Krb5LoginModule required;"}, "has no username and password"),
        ({"request.timeout.ms": "soon"}, "request.timeout.ms=soon is not a number"),
        ({"request.timeout.ms": "-1"}, "request.timeout.ms=-1 is less than 1"),
        ({"retry.backoff.ms": "-1"}, "retry.backoff.ms=-1 is less than 0"),
        ({"ssl_check_hostname": "maybe"}, "ssl_check_hostname=maybe is neither true nor false"),
        ({"security.protocol": "SASL-SSL"}, "security.protocol=SASL-SSL is not one of PLAINTEXT, SSL"),
    ],
)
def test_unsupported_properties_are_refused(tmp_path: Path, properties: dict[str, str], reason: str) -> None:
    with pytest.raises(CommandFailed, match=reason):
        settings_of(tmp_path, properties)


def test_a_missing_command_config_is_an_error(run: Run, tmp_path: Path) -> None:
    done = run("topic", "--list", "--command-config", tmp_path / "none")
    assert done.code == 1
    assert f"cannot read {tmp_path / 'none'}: No such file or directory" in done.err


def test_an_include_list_is_kafkas() -> None:
    assert include_list("\"a.*, b'").pattern == "a.*|b"


def state(leader: int, isr: list[int], *, adding: list[int] | None = None) -> PartitionState:
    return PartitionState(0, leader, 0, isr, [1, 2, 3], [], adding or [], [], [], [])


@pytest.mark.parametrize(
    ("chosen", "leader", "isr", "is_shown"),
    [
        ("under_replicated_partitions", 1, [1, 2, 3], False),
        ("under_replicated_partitions", 1, [1, 2], True),
        ("unavailable_partitions", 1, [1], False),
        ("unavailable_partitions", -1, [], True),
        ("unavailable_partitions", 3, [3], True),
        ("under_min_isr_partitions", 1, [1], True),
        ("under_min_isr_partitions", 1, [1, 2], False),
        ("under_min_isr_partitions", -1, [1, 2], True),
        ("at_min_isr_partitions", 1, [1, 2], True),
        ("at_min_isr_partitions", 1, [1], False),
    ],
)
def test_filters_are_kafkas(chosen: str, leader: int, isr: list[int], is_shown: bool) -> None:
    partition = state(leader, isr)
    topic = TopicState("t", None, False, [partition], 2, {})
    assert FILTERS[chosen](topic, partition, {1, 2}) is is_shown


def test_replicas_being_added_do_not_count_as_missing() -> None:
    moving = state(1, [1, 2], adding=[3])
    topic = TopicState("t", None, False, [moving], 1, {})
    assert topic.replication_factor == 2
    assert not FILTERS["under_replicated_partitions"](topic, moving, set())


def test_commands_print_only_through_escaping_functions() -> None:
    ways = re.compile(r"(?<![\w.])(?<!def )print\(|stdout\.write\(|stdout\.buffer")
    files = Path(kbroker.cli.__file__).parent.glob("*.py")
    found = {path.name for path in files if ways.search(path.read_text())}
    # The demo and `serve` have only text of this process; tables escape each cell.
    others = {"_say.py", "_table.py", "_terminal.py", "serve.py"}
    assert found - {name for name in found if name.startswith("_demo")} == others


def test_a_ready_file_that_is_a_device_or_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "ready"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        announce(1, "localhost", 9092, ready_file=pipe, as_kafka=False)
        assert os.read(reader, 64) == b"localhost:9092\n"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_ready_file_is_not_written_through_a_link_of_another_user(tmp_path: Path) -> None:
    victim, ready = tmp_path / "victim", tmp_path / "ready"
    victim.write_text("kept")
    (tmp_path / f"ready.{os.getpid()}").symlink_to(victim)
    announce(1, "localhost", 9092, ready_file=ready, as_kafka=False)
    assert (victim.read_text(), ready.read_text()) == ("kept", "localhost:9092\n")
    assert not ready.is_symlink()


def test_files_that_others_can_read_or_replace_cause_warnings() -> None:
    with tempfile.TemporaryDirectory() as name:  # others can enter its parents
        place = Path(name).resolve()
        place.chmod(0o755)
        key, users, data = place / "key.pem", place / "users", place / "data"
        config = place / "server.properties"
        config.write_text(
            f"log.dirs={data}\nlistener.name.external.ssl.keystore.location={key}\nssl.key.password=x\n"
            f"kbroker.bootstrap.users.file={users}\nkbroker.http.token.file={place}/missing\n"
        )
        for path in (key, users):
            path.touch(0o600)
        data.mkdir(0o755)
        config.chmod(0o640)
        settings = Settings.load(config.read_bytes())
        assert list(file_warnings(settings, config)) == []
        for path in (key, config):
            path.chmod(0o644)
        data.chmod(0o777)
        reading, replacing = file_warnings(settings, config)
        assert f"can read {key}, {config}, which hold secrets" in reading
        assert f"the data directory {data}" in replacing
        config.write_text("num.partitions=1")
        assert f"can read {key}, which" in next(file_warnings(settings, config))
        place.chmod(0o700)
        assert list(file_warnings(settings, config)) == []


def test_the_settings_file_may_be_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "server.properties"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(pipe.write_text, "num.partitions=3\nssl.key.password=secret\n")
        with BrokerProcess(tmp_path / "data", "--config", str(pipe)) as broker:
            assert broker.stop()[0] == 0


def test_d9_a_broker_with_output_on_a_full_disk_still_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full").open("w")  # noqa: SIM115 - closing it fails as well
    monkeypatch.setattr(sys, "stdout", full)
    announce(1, "localhost", 9092, ready_file=None, as_kafka=True)
    monkeypatch.undo()
    with pytest.raises(OSError, match="No space left"):
        full.close()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("topic --lst", "unknown flag --lst; did you mean --list?"),
        ("serve --data-dri x", "unknown flag --data-dri; did you mean --data-dir?"),
        ("tier ls --formt=json", "unknown flag --formt; did you mean --format?"),
        ("health --xyzzy", "unknown flag --xyzzy\n"),
    ],
)
def test_an_unknown_flag_is_answered_with_the_nearest(run: Run, words: str, complaint: str) -> None:
    done = run(*words.split())
    assert done.code == 2
    assert complaint in done.err
    assert f"usage: kbroker {words.split(' -', maxsplit=1)[0]} " in done.err


def test_the_first_screen_of_a_controller_has_no_commands_for_clients() -> None:
    addresses = (
        "listeners=CONTROLLER://:9093\ncontroller.listener.names=CONTROLLER\ncontroller.quorum.voters=1@h:9093\n"
    )
    settings = Settings.load(f"process.roles=controller\nnode.id=1\nlog.dirs=d\n{addresses}".encode(), file_name="f")
    text = "\n".join(first_screen("h:9093", settings))
    assert "controller.quorum.bootstrap.servers=h:9093" in text
    assert "produce" not in text


def test_a_terminal_gets_a_first_screen(tmp_path: Path) -> None:
    terminal, inside = os.openpty()
    command = [sys.executable, "-m", "kbroker", "serve", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdin=inside, stdout=inside, stderr=subprocess.DEVNULL) as broker:
        os.close(inside)
        shown = b""
        while b"Ctrl-C" not in shown:
            shown += os.read(terminal, 4096)
        broker.terminate()
        assert broker.wait(60) == 0
    os.close(terminal)
    text = shown.decode().replace("\r", "")
    address = text.partition("kbroker ready on ")[2].split("\n")[0]
    assert f"kbroker {kbroker.__version__}" not in text.split("\n")[0], "programs read the first line"
    for word in (kbroker.__version__, str(tmp_path), f"kcat -b {address} -L", "--http"):
        assert word in text
