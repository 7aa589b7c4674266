"""The report card: green on Apache Kafka and kbroker, red where a broker differs, complete where one hangs or dies."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

import kbroker.testing
from compat.brokers import CHECKOUT, address_of, free_port
from compat.card import kfake, report
from compat.card.connection import Deadline
from compat.card.main import main, selected
from compat.card.registry import Area, all_rows
from compat.card.runner import DIFFERS, EQUAL, NOT_OFFERED, NOT_RUN, Card, Result, Runner, judged, recording
from compat.card.session import GROUP_RESOURCE, BrokerGone, exchange
from compat.features import raise_features
from compat.frame_proxy import FrameProxy
from compat.secured import started
from compat.tiered.site import Site
from compat.waiting import until

FEATURES = {"transaction.version": 2, "group.version": 1}


def carded(servers: str, *patterns: str, row_limit_s: float | None = 90) -> Card:
    """The card of some rows, or of all."""
    return Runner(servers, row_limit_s=row_limit_s).run(selected(all_rows(), patterns), recording())


def unequal(card: Card) -> str:
    """The report if a row differs or was not run; otherwise nothing."""
    return "" if card.is_equal else report.table(card)


def statuses(card: Card) -> dict[str, str]:
    """The status of each row by its id."""
    return {each.row.id: each.status for each in card.results}


def lines_of(card: Card, row: str) -> str:
    """What the report says about one row."""
    return "\n".join(line for each in card.results if each.row.id == row for line in each.lines())


@pytest.fixture(scope="module")
def tiered_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool], str]]:
    """A function that starts a broker that offers everything, Apache Kafka or kbroker; returns its address."""
    started: list[Site] = []

    def start(is_kafka: bool) -> str:
        site = Site.in_directory(tmp_path_factory.mktemp("card"), is_kafka=is_kafka)
        started.append(site)
        site.broker.start()
        raise_features(site.address, FEATURES)
        return site.address

    yield start
    for site in started:
        site.broker.kill()


@pytest.fixture(scope="module")
def full(tiered_site: Callable[[bool], str]) -> str:
    """The address of a kbroker that offers everything."""
    return tiered_site(False)


@pytest.fixture(scope="module")
def server() -> Iterator[kbroker.testing.Server]:
    """A kbroker with faults and without a tier."""
    with kbroker.testing.broker({"remote.log.storage.system.enable": "false"}) as started:
        yield started


@pytest.mark.usefixtures("kafka_libraries")
def test_kafka_still_gives_the_recorded_answers(tiered_site: Callable[[bool], str]) -> None:
    card = carded(tiered_site(True))
    assert card.count(EQUAL) == len(card.results), report.table(card)
    assert recording().keys() == {row.id for row in all_rows()}


def test_kbroker_answers_as_kafka_beside_other_data(full: str) -> None:
    own = kbroker.testing.Server(full)
    own.create_topic("orders")
    before = own.groups()
    card = carded(full)
    assert unequal(card) == ""
    assert card.left == []
    missing = [each for each in card.results if each.status == NOT_OFFERED]
    assert all("does not advertise" in each.text for each in missing), "APIs that kbroker does not have, and no more"
    assert [name for name in own.topics() if not name.startswith("__")] == ["orders"]
    assert own.groups() == before
    answer = exchange(
        address_of(full), Deadline.after(10), "ListConfigResources", 1, {"ResourceTypes": [GROUP_RESOURCE]}
    )
    assert answer["ConfigResources"] == []
    own.disconnect()


@pytest.mark.long
def test_a_cluster_answers_as_one_broker() -> None:
    with kbroker.testing.brokers(2) as cluster:
        card = carded(cluster.bootstrap_servers, "a stable group refuses", "OffsetFetch", "old protocol, state Ongoing")
    assert unequal(card) == ""


def test_what_a_broker_does_not_offer_is_neither_green_nor_red(server: kbroker.testing.Server) -> None:
    card = carded(server.bootstrap_servers, "consumer groups: *", "tier: *", "ShareFetch is advertised")
    assert set(statuses(card).values()) <= {NOT_OFFERED, EQUAL}
    texts = {each.text for each in card.results if each.status == NOT_OFFERED}
    assert "the broker does not advertise the API" in texts
    assert any(text.startswith("tiered storage: a topic with") for text in texts), texts


def test_kfake_differs_where_it_is_known_to_differ() -> None:
    with kfake.running() as address:
        card = carded(address, row_limit_s=8)
    found = statuses(card)
    assert card.count(EQUAL) > 200
    for row in (
        "versions: ListOffsets is advertised in Kafka's versions",
        "topics: a topic is refused: a name with a blank",
        "batches: magic 3",
        "groups: a static leader that returns causes no rebalance, and its old id is fenced",
    ):
        assert found[row] == DIFFERS, row
    versions = "versions: Kafka 1-11; this broker 0-10"
    assert lines_of(card, "versions: ListOffsets is advertised in Kafka's versions") == versions
    # A malformed frame ends kfake, which the report says; these rows come last, so that the others are complete.
    assert card.gone
    assert {area for area in report.areas(card) if card.count(NOT_RUN, area)} <= {"frames"}


def test_a_wrong_error_code_makes_its_row_red(server: kbroker.testing.Server) -> None:
    row = "metadata: version 9 describes a topic of three partitions"
    assert statuses(carded(server.bootstrap_servers, row)) == {row: EQUAL}
    row = "versions: Heartbeat answers in each version"
    server.faults.fail("Heartbeat", "COORDINATOR_NOT_AVAILABLE", times=None)
    card = carded(server.bootstrap_servers, row)
    server.faults.clear()
    assert statuses(card) == {row: DIFFERS}
    wrong = "version 0: Kafka decodes, UNKNOWN_MEMBER_ID; this broker decodes, COORDINATOR_NOT_AVAILABLE"
    assert wrong in lines_of(card, row)


def test_an_api_that_hangs_costs_only_its_rows(server: kbroker.testing.Server) -> None:
    server.faults.delay("OffsetForLeaderEpoch", 30, times=None)
    card = carded(server.bootstrap_servers, "OffsetForLeaderEpoch", "offsets: the end*", "latest (", row_limit_s=2)
    server.faults.clear()
    assert statuses(card)["offsets: the end of a leader epoch"] == DIFFERS
    assert "OffsetForLeaderEpoch version 4 was not answered in time" in report.table(card)
    assert statuses(card)["offsets: the offset of latest (-1)"] == EQUAL
    assert not card.gone


def test_a_broker_that_dies_midway_is_said_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    with kbroker.testing.broker() as dying:
        runner = Runner(dying.bootstrap_servers, jobs=2)
        card = runner.run(
            selected(all_rows(), ["metadata: *", "frames: *"]), recording(), on_result=lambda _: dying.nodes[0].stop()
        )
    assert card.gone.startswith(f"the broker at {dying.bootstrap_servers} stopped answering, at the latest in the row")
    assert card.count(NOT_RUN) > 50
    assert not card.is_equal
    assert f"INCOMPLETE: {card.gone}" in report.table(card)
    assert main(["-b", dying.bootstrap_servers]) == 1
    assert f"no broker answers at {dying.bootstrap_servers}: [Errno 111]" in capsys.readouterr().err


def test_a_listener_that_never_answers_is_no_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(BrokerGone, match="was not answered in time"):
        Runner(f"127.0.0.1:{silent.getsockname()[1]}")


def test_a_listener_that_answers_garbage_is_no_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(3):
                connection, _address = listener.accept()
                with connection:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(BrokerGone, match="no broker answers at"):
            Runner(f"127.0.0.1:{listener.getsockname()[1]}")


def test_a_secured_broker_answers_as_an_open_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SASL_SSL with an authorizer. A row sends its bytes, also malformed ones, after the login."""
    config = tmp_path / "client.properties"

    def run(*words: str, settings: dict[str, str]) -> int:
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return main(["-b", secured.bootstrap_servers, "--command-config", str(config), *words])

    with started(tmp_path, {"connections.max.reauth.ms": "0"}) as secured:
        only = [f"--only={area}: {row}" for area, row in (("metadata", "*"), ("frames", "*"), ("versions", "Sasl*"))]
        assert run(*only, "--format=json", settings=secured.java()) == 0
        written = json.loads(capsys.readouterr().out)
        assert written["counts"]["not offered"] == 1, "TLS cannot close one direction of a connection"
        assert written["counts"]["equal"] > 60
        assert run(settings=secured.java(password="wrong")) == 1
        assert "no login: SASL_AUTHENTICATION_FAILED" in capsys.readouterr().err
        assert main(["-b", secured.bootstrap_servers]) == 1
        assert "no broker answers" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        run(settings={**secured.java(), "ssl.truststore.location": str(tmp_path / "missing.pem")})
    assert ended.value.code == 2
    assert "missing.pem" in capsys.readouterr().err


class Swallowing(FrameProxy):
    """Does not forward the answers to ListGroups."""

    def on_response(self, remembered: bytes, frame: bytes) -> bool:  # noqa: ARG002
        """Whether the answer is one to another API."""
        return remembered[:2] != b"\x00\x10"


def test_a_proxy_that_swallows_answers_is_noticed() -> None:
    port = free_port()
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    with kbroker.testing.broker(advertised) as behind:
        upstream = ("127.0.0.1", behind.port)
        proxy = Swallowing(port, upstream)
        card = carded(f"127.0.0.1:{port}", "ListGroups answers", "DescribeGroups answers", row_limit_s=2)
        proxy.close()
    assert statuses(card) == {
        "versions: ListGroups answers in each version": DIFFERS,
        "versions: DescribeGroups answers in each version": EQUAL,
    }


def test_the_command_writes_every_format(
    server: kbroker.testing.Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    junit, page = tmp_path / "card.xml", tmp_path / "card.html"
    chosen = ["-b", server.bootstrap_servers, "--only", "metadata: version", "--only", "ShareFetch is"]
    assert main([*chosen, "--format", "json", "--junit", str(junit), "--html", str(page)]) == 0
    written = json.loads(capsys.readouterr().out)
    assert (written["is_equal"], written["counts"]["equal"], written["counts"]["not offered"]) == (True, 14, 1)
    suites = {suite.get("name"): suite for suite in Xml.fromstring(junit.read_text()).iter("testsuite")}
    assert {name: suite.get("tests") for name, suite in suites.items()} == {"versions": "1", "metadata": "14"}
    assert suites["versions"].find("testcase/skipped") is not None
    assert "<script" not in page.read_text()
    assert main([*chosen, "--strict"]) == 1
    assert "15 rows: 14 equal, 1 not offered" in capsys.readouterr().out


def test_an_interrupted_run_leaves_no_topics_and_groups(server: kbroker.testing.Server) -> None:
    command = [sys.executable, "-m", "compat", "-b", server.bootstrap_servers]
    running = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until(lambda: sum(name.startswith("card-") for name in server.topics()) > 5, patience_s=60)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=120)
    assert (running.returncode, "interrupted" in errors) == (130, True), errors
    assert [name for name in [*server.topics(), *server.groups()] if name.startswith("card-")] == []


def test_rows_are_listed_and_unknown_ones_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", "tier"]) == 0
    assert "tier: timestamps are found in the tier" in capsys.readouterr().out.splitlines()
    with pytest.raises(SystemExit) as ended:
        main(["--only", "no such row"])
    assert ended.value.code == 2
    assert "no row matches no such row" in capsys.readouterr().err


def hostile() -> Card:
    """A card of a broker whose texts attack the report."""
    area = Area("frames")
    area.add("<b>bold</b>", lambda _: None)
    text = '<script>alert("x")</script>\x1b[31m\x00 & ]]>'
    differing = judged(area.rows[0], {"answer": text}, {"answer": text + "<i>", text: 1})
    return Card("host<i>:9092", [differing, Result(area.rows[0], NOT_OFFERED, text=text)], 1.0, gone=text)


def test_texts_of_a_broker_are_escaped_on_the_page() -> None:
    page = report.as_html(hostile())
    assert "<script" not in page
    assert "<b>" not in page
    assert "<i>" not in page
    assert "&lt;script&gt;" in page
    assert "\x1b" not in page
    assert "http" not in page, "no outside assets"


def test_texts_of_a_broker_cannot_break_junit_or_the_terminal() -> None:
    card = hostile()
    parsed = Xml.fromstring(report.as_junit(card))
    assert [len(list(parsed.iter(tag))) for tag in ("testcase", "failure", "skipped")] == [2, 1, 1]
    assert "\x1b" not in report.table(card)
    assert json.loads(report.as_json(card))["counts"][DIFFERS] == 1
