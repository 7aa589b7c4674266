"""The page at / in a real browser, about real brokers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

import kbroker.testing
from kbroker.broker.recovery import RecoveryProgress
from kbroker.client.blocking import Connection
from kbroker.config import Settings
from kbroker.metadata.image import Image, PartitionImage, TopicImage
from kbroker.runtime.env import RealEnv
from kbroker.runtime.metrics import Metrics
from kbroker.runtime.net_ports import Listener
from kbroker.runtime.turns import Turns
from kbroker.testing.servers import Server
from kbroker.web.asked import Asked
from kbroker.web.serving import serving_pages
from kbroker.web.sorting import STEP
from kbroker.web.view import BURST_NS, MAX_AGE_NS, Views
from tests.web.chromium import Chromium
from wire.errors import ErrorCode
from wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.record_batch import Record, build_batch

WIDTH = 1200
UNKNOWN = "\N{EN DASH}"
HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>&amp;\u202e'
ROWS = "[...document.querySelectorAll('#{} tr.row')].map((row) => [...row.cells].map((cell) => cell.innerText))"


@pytest.fixture(scope="module")
def started_browser() -> Iterator[Chromium]:
    with Chromium(width=WIDTH) as chromium:
        yield chromium


@pytest.fixture
def browser(started_browser: Chromium, tmp_path: Path) -> Iterator[Chromium]:
    """The browser; after each test no script has failed, nothing was blocked, and nothing is cut off at the side."""
    yield started_browser
    started_browser.screenshot(tmp_path / "page.png")
    assert started_browser.problems == []
    assert started_browser.evaluate("document.documentElement.scrollWidth") <= WIDTH
    started_browser.ask("Emulation.setEmulatedMedia", features=[])
    started_browser.open("about:blank")


def look(browser: Chromium, server: Server, number: int = 0, fragment: str = "") -> None:
    """Open the page of a node, and wait for its first view."""
    browser.open("about:blank")
    browser.open(f"http://{server.nodes[number].http}/#{fragment}")
    browser.until("document.querySelector('#status')?.textContent.startsWith('live')")


def rows(browser: Chromium, table: str) -> list[list[str]]:
    """The visible texts of a table's rows."""
    found: list[list[str]] = browser.evaluate(ROWS.format(table))
    return found


def toggle(browser: Chromium, key: str) -> None:
    """Open or close a row, and wait for its details."""
    finds = f"[...document.querySelectorAll('button')].find((one) => one.dataset.key === {json.dumps('open ' + key)})"
    is_open = browser.evaluate(f"{finds}.getAttribute('aria-expanded')") == "true"
    browser.evaluate(f"{finds}.click()")
    browser.until(f"document.querySelector('.detail table') {'===' if is_open else '!=='} null")


def produce(server: Server, topic: str, *, records: int, size: int = 10, index: int = 0) -> None:
    batch = build_batch([Record(offset, 1_000 + offset, None, b"x" * size) for offset in range(records)])
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=index, records=batch)])]
    request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data)
    client = server.client
    client.refresh([(topic, index)])
    answer = client.ask(request, client.leader((topic, index)), at_most=7)
    assert answer.responses[0].partition_responses[0].error_code == 0


def join(connection: Connection, group: str) -> None:
    """Join a classic group as its first member."""
    while connection.ask(FindCoordinatorRequest(key=group), version=2).error_code:
        pass
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="tests",
        protocols=[JoinGroupRequestProtocol(name=HOSTILE, metadata=b"")],
    )
    assert connection.ask(request, version=3).error_code == 0


def commit(connection: Connection, group: str, topic: str, offset: int) -> None:
    while connection.ask(FindCoordinatorRequest(key=group), version=2).error_code:
        pass
    one = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    request = OffsetCommitRequest(
        group_id=group, member_id="", topics=[OffsetCommitRequestTopic(name=topic, partitions=[one])]
    )
    assert connection.ask(request, version=5).topics[0].partitions[0].error_code == 0


def begin_transaction(connection: Connection, transactional_id: str, topic: str) -> None:
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    retried = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
    connection.ask(FindCoordinatorRequest(coordinator_keys=[transactional_id], key_type=1))
    while (producer := connection.ask(request, version=2)).error_code in retried:
        pass
    added = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
    )
    answer = connection.ask(added, version=3)
    assert answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0


def test_the_page_shows_a_healthy_broker_and_follows_it(browser: Chromium) -> None:
    with kbroker.testing.broker() as server:
        server.create_topic("orders", partitions=2)
        produce(server, "orders", records=5)
        with Connection(server.host, server.port, client_id="billing") as connection:
            commit(connection, "invoices", "orders", 2)
        look(browser, server)
        first, second, *_ = rows(browser, "partitions")
        assert first[:4] == ["orders-0", "healthy", "1", "1"]
        assert first[5:11] == ["0", "0", UNKNOWN, "5", "5", "5"]
        assert second[5:11] == ["0", "0", UNKNOWN, "0", "0", "0"]
        bar = browser.evaluate("document.querySelector('#partitions svg').getAttribute('aria-label')")
        assert bar == ("records from 0 to before 5, local from 0, high watermark 5, last stable offset 5")
        assert rows(browser, "groups") == [["invoices", "classic", "Empty", "0", "1", "3"]]
        assert rows(browser, "nodes")[0][:3] == ["1 (this node)", "broker, active controller", "running"]
        assert " used, " in browser.text("#tiles")

        toggle(browser, "partitions orders 0")
        assert "it is the active segment" in browser.text(".detail")
        produce(server, "orders", records=3)
        browser.until(f"({ROWS.format('partitions')})[0][10] === '8'")
        assert "it is the active segment" in browser.text(".detail"), "a refresh closed the row"

        browser.evaluate("document.querySelector('#search').value = 'NOTHING'")
        browser.evaluate("document.querySelector('#search').dispatchEvent(new Event('input'))")
        browser.until("document.querySelector('#partitions').textContent.includes('No topic has a name like this')")


def test_a_cluster_in_trouble_comes_first_and_a_silent_node_is_reported(browser: Chromium) -> None:
    quick = {
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "200",
        "kbroker.http.listener": "127.0.0.1:0",
    }
    with kbroker.testing.brokers(3, quick) as server:
        server.create_topic("aaa", partitions=3, config={"min.insync.replicas": "1"}, replication_factor=1)
        server.create_topic("wide", partitions=1, replication_factor=3)
        server.create_topic("strict", partitions=1, replication_factor=3, config={"min.insync.replicas": "3"})
        server.disconnect()
        look(browser, server)
        assert rows(browser, "partitions")[0][1] == "healthy"
        victim, other, _, controller = server.nodes[2], server.nodes[0], server.nodes[1], server.nodes[3]
        victim.kill()  # type: ignore[attr-defined]
        browser.until("document.querySelector('#nodes').innerText.includes('fenced')")
        browser.until("document.querySelector('#partitions .bad.strong') !== null")
        found = rows(browser, "partitions")
        states = [row[1] for row in found]
        assert states == sorted(states, key=["offline", "under min ISR", "under-replicated", "healthy"].index)
        assert {"offline", "under min ISR", "under-replicated", "healthy"} == set(states)
        by_name = {row[0]: row for row in found}
        assert "lacks" in by_name["wide-0"][3]
        assert by_name["strict-0"][1] == "under min ISR"

        # A controller knows the same without offsets.
        look(browser, server, 3)
        assert [row[1] for row in rows(browser, "partitions")] == states
        assert {row[4] for row in rows(browser, "partitions")} == {"not on this node"}
        assert "ask a broker" in browser.text("#groups")

        look(browser, server, 0)
        other.kill()  # type: ignore[attr-defined]
        browser.until("document.querySelector('#silence').textContent.includes('does not answer')")
        assert "The page shows what it said at" in browser.text("#silence")
        browser.until("document.querySelector('#status').textContent.startsWith('no answer')")
        assert rows(browser, "partitions")[0][1] == "offline"
        assert controller.is_running


def test_a_tiered_topic_shows_what_is_remote_and_why_segments_are_local(browser: Chromium, tmp_path: Path) -> None:
    quick = {
        "remote.log.manager.task.interval.ms": "100",
        "log.retention.check.interval.ms": "100",
        "log.initial.task.delay.ms": "0",
        "rsm.config.dir": str(tmp_path / "tier"),
    }
    with kbroker.testing.broker(quick, data_dir=tmp_path / "broker") as server:
        config = {"remote.storage.enable": "true", "segment.bytes": "1048576", "retention.ms": "-1"}
        server.create_topic("cold", config={**config, "local.retention.bytes": "1048576"})
        for _ in range(5):
            produce(server, "cold", records=10, size=50_000)
        for _ in range(5):
            produce(server, "cold", records=10, size=50_000)
        look(browser, server, fragment="search=cold")
        browser.until(f"({ROWS.format('partitions')})[0][6] !== '0'")
        (row,) = rows(browser, "partitions")
        assert int(row[7]) >= int(row[6]) - 1 >= 19, "no gap between the tiers"
        assert (row[5], row[8], row[10]) == ("0", "100", "100")
        assert (
            browser.evaluate("document.querySelectorAll('#partitions svg .remote, #partitions svg .local').length") == 2
        )
        assert "in the tier up to" in browser.evaluate("document.querySelector('#partitions svg').textContent")
        toggle(browser, "partitions cold 0")
        browser.until("document.querySelector('.detail').textContent.includes('it is in the tier; ')")
        assert "only closed segments are copied" in browser.text(".detail")

        # The store fails: the next copy shows why.
        (tmp_path / "tier").rename(tmp_path / "gone")
        (tmp_path / "tier").write_text("in the way")
        for _ in range(3):
            produce(server, "cold", records=10, size=50_000)
        browser.until("document.querySelector('#tier .bad') !== null")
        browser.until("document.querySelector('#partitions tr.row td:nth-child(2)').textContent === 'tier error'")
        assert "is retried" in browser.text("#tier")
        assert "Tier: " in browser.text("#partitions")
        browser.until("document.querySelector('.detail').textContent.includes('the last copy failed')")


def test_hostile_names_are_only_text(browser: Chromium) -> None:
    with kbroker.testing.broker() as server:
        server.create_topic("__proto__.-_")
        with Connection(server.host, server.port, client_id=HOSTILE) as connection:
            join(connection, HOSTILE)
            join(connection, "__proto__")
            begin_transaction(connection, HOSTILE, "__proto__.-_")
            look(browser, server)
            assert [row[0] for row in rows(browser, "groups")] == [HOSTILE, "__proto__"]
            ((shown, state, *_),) = rows(browser, "transactions")
            assert (shown, state) == (HOSTILE, "Ongoing")
            for group in (HOSTILE, "__proto__"):
                toggle(browser, "groups " + group)
                assert HOSTILE in browser.text(".detail")
                toggle(browser, "groups " + group)
            toggle(browser, "partitions __proto__.-_ 0")
            assert browser.evaluate("document.querySelectorAll('img, main script, iframe').length") == 0

            # The page's policy stops what its escaping would let through.
            policy = "fetch(location.origin + '/').then((got) => got.headers.get('content-security-policy'))"
            assert "default-src 'none'" in browser.evaluate(policy)
            blocked = browser.evaluate(
                "(() => { try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error.name; } })()"
            )
            assert blocked == "TypeError"
            browser.problems.clear()  # the policy reports what it has just blocked


def test_the_page_is_dark_where_the_system_is_and_stops_while_hidden(browser: Chromium) -> None:
    contrast = """(() => {
        const lightness = (color) => {
            const [r, g, b] = color.match(/\\d+/g).slice(0, 3).map((part) => part / 255)
                .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const back = lightness(getComputedStyle(document.querySelector('.card')).backgroundColor);
        return ['td', '.soft', '.good', 'a', '.name button'].map((name) => {
            const text = lightness(getComputedStyle(document.querySelector(name)).color);
            return (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05);
        }).concat([back]);
    })()"""
    with kbroker.testing.broker() as server:
        server.create_topic("orders")
        look(browser, server)
        *light, back = browser.evaluate(contrast)
        assert min(light) >= 4.5
        assert back > 0.9
        browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        *dark, back = browser.evaluate(contrast)
        assert min(dark) >= 4.5
        assert back < 0.05

        browser.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
        browser.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        browser.until("document.querySelector('#status').textContent.startsWith('paused while hidden')")
        produce(server, "orders", records=5)
        browser.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        browser.until(f"({ROWS.format('partitions')})[0][10] === '5'")
        browser.click("#pause")
        assert browser.text("#status").startswith("paused")


@dataclass
class ManyPartitions:
    """A node as a controller knows it, whose metadata have ten thousand partitions, two of them in trouble."""

    security = None

    settings: Settings
    env: RealEnv = field(default_factory=RealEnv)
    metrics: Metrics = field(default_factory=Metrics)
    broker: None = None
    server: None = None
    directory: None = None
    recovery: RecoveryProgress = field(default_factory=RecoveryProgress)
    is_serving: bool = True
    is_stopping: bool = False

    def __post_init__(self) -> None:
        self.turns = Turns(self.env.now_ns)
        healthy = PartitionImage((1, 2), (1, 2), 1, 0, 0)
        topics = {}
        for number in range(100):
            partitions = dict.fromkeys(range(100), healthy)
            if number == 57:
                partitions |= {31: healthy._replace(leader=-1, isr=(2,)), 7: healthy._replace(isr=(1,))}
            topics[uuid.UUID(int=number + 10)] = TopicImage(
                f"topic-{number:02}", uuid.UUID(int=number + 10), partitions
            )
        self.image = Image(topics_by_id=topics, topics_by_name={topic.name: topic for topic in topics.values()})


def controller_settings() -> Settings:
    return Settings.load(
        overrides=["kbroker.http.listener=127.0.0.1:0"],
        defaults={
            "process.roles": "controller",
            "node.id": "9",
            "log.dirs": "/data",
            "listeners": "CONTROLLER://127.0.0.1:0",
            "controller.listener.names": "CONTROLLER",
        },
    )


async def test_ten_thousand_partitions_are_readable(browser: Chromium) -> None:
    node = ManyPartitions(controller_settings())
    listeners: list[Listener] = []

    async def listen(host: str, port: int) -> list[Listener]:
        listeners.append(await node.env.listen(host, port))
        return listeners

    def drive() -> None:
        browser.open(f"http://127.0.0.1:{listeners[0].port}/")
        browser.until("document.querySelector('#status')?.textContent.startsWith('live')")
        found = rows(browser, "partitions")
        assert [row[:2] for row in found[:3]] == [
            ["topic-57-31", "offline"],
            ["topic-57-7", "under-replicated"],
            ["topic-00-0", "healthy"],
        ]
        assert len(found) == 50
        assert "1 to 50 of 10,000" in browser.text("#partitions-pages")
        assert rows(browser, "topics")[0][:4] == ["topic-57", "offline", "100", "2"]
        browser.click("[aria-label='Next page of partitions']")
        browser.until("document.querySelector('#partitions-pages').textContent.includes('51 to 100')")
        browser.click("[data-key='sort partitions name']")
        browser.until("document.querySelector('#partitions tr.row').cells[0].innerText === 'topic-00-0'")
        browser.evaluate("document.querySelector('#search').value = 'PIC-57'")
        browser.evaluate("document.querySelector('#search').dispatchEvent(new Event('input'))")
        browser.until("document.querySelector('#partitions-pages').textContent.includes('of 100')")
        assert browser.evaluate("location.hash") == "#search=PIC-57"

    async with serving_pages(node, listen):
        await trio.to_thread.run_sync(drive)
    steps = list(Views(node).reply(Asked.parse("")).pieces)
    assert len(steps) > 10_000 / STEP, "no step reads more than a few partitions"


class SlowEnv(RealEnv):
    """A clock that moves by a millisecond whenever it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.time_ns = 1

    def now_ns(self) -> int:  # type: ignore[override]
        self.time_ns += 1_000_000
        return self.time_ns


def test_all_views_together_take_one_percent_of_the_time() -> None:
    env = SlowEnv()
    views = Views(ManyPartitions(controller_settings(), env))

    def ask(search: str) -> tuple[int, bytes]:
        reply = views.reply(Asked.parse(f"search={search}"))
        return reply.status, b"".join(reply.pieces)

    def made_after(seconds: int, *searches: str) -> int:
        env.time_ns += seconds * 1_000_000_000
        return sum(ask(each)[0] == 200 for each in searches)

    began_ns = env.time_ns
    count = made_after(0, *(f"{number}" for number in range(100)))
    took_ns = (env.time_ns - began_ns) // 2  # the other half passes between the steps
    assert 0 < count < 100
    one_ns = took_ns // count
    assert took_ns < BURST_NS + 2 * one_ns, "without a pause they may take two seconds"
    env.time_ns += 60_000_000_000
    at_once = [views.reply(Asked.parse(f"search=at once {number}")) for number in range(5)]
    last, old = "at once 4", [(each.status, b"".join(each.pieces)) for each in at_once][-1]
    assert old[0] == 200
    env.time_ns += 10_000_000_000
    assert ask(last) == old, "a view that was made before is shown again"
    assert ask("new")[0] == 503
    env.time_ns += MAX_AGE_NS
    assert ask(last) != old
    begun_ns = env.time_ns
    count = sum(made_after(10, f"{number}") for number in range(1_000, 1_200))
    assert 0 < count * one_ns <= (env.time_ns - begun_ns) // 100 + BURST_NS + one_ns
