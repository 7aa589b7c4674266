"""What a start reports about a store that is missing, misconfigured, or of another cluster."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

import pytest
import trio

from kbroker.node import NodeFailed
from kbroker.testing.disk import Fault, SimulatedDisk
from kbroker.testing.env import MemoryThreads
from kbroker.testing.memory_node import MemoryBroker, memory_broker
from kbroker.tiered.api import RemoteStorageError, RetriableRemoteStorageError, StoreMisconfigured
from kbroker.tiered.local import LocalRemoteStorage
from kbroker.web import health
from tests.broker.test_tier_lifecycle import QUICK, TIERED, fill, read_all, until
from tests.handlers.asking import create_topic

ERROR: RemoteStorageError | Exception | None = None
CHECKS: list[str] = []


class Store(LocalRemoteStorage):
    """The directory as the tier, with check_store as ERROR says."""

    disk: SimulatedDisk

    def __init__(self) -> None:
        super().__init__(self.disk)

    def check_store(self) -> None:
        CHECKS.append(repr(self))
        if ERROR is not None:
            raise ERROR
        super().check_store()


NAMED = {**QUICK, "remote.log.storage.manager.class.name": f"{__name__}:Store", "rsm.config.dir": "/tier"}


@pytest.fixture(autouse=True)
def nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ERROR", None)
    CHECKS.clear()


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, Mapping[str, Any]]]:
    """The log lines about the store: level, event and fields."""
    return [
        (one.levelname, one.getMessage(), one.__dict__["kbroker_fields"])
        for one in caplog.records
        if "the store" in one.getMessage()
    ]


def copied(broker: MemoryBroker, tier: str, topic: str) -> int:
    found = broker.disk.image(tier) if broker.disk.exists(tier) else {}
    return sum(path.startswith(f"{tier}/{topic}-") and path.endswith(".manifest.json") for path in found)


async def disk_with_tiered_segments(
    settings: Mapping[str, object] = QUICK, *, tier: str = "/data-tier"
) -> SimulatedDisk:
    async with memory_broker(settings=settings) as broker:
        client = await broker.connect()
        for topic in ("orders", "others"):
            await create_topic(client, topic, settings=TIERED)
            await fill(client, topic, 4)
            await until(lambda topic=topic: copied(broker, tier, topic) == 3)  # type: ignore[misc]
    return broker.disk


async def test_a_store_with_a_wrong_setting_refuses_a_first_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "disk", SimulatedDisk(), raising=False)
    monkeypatch.setitem(globals(), "ERROR", StoreMisconfigured("there is no bucket 'x'"))
    with pytest.raises(ExceptionGroup) as raised:
        async with memory_broker(Store.disk, settings=NAMED):
            raise AssertionError("it started")
    failure = raised.value.exceptions[0]
    assert isinstance(failure, NodeFailed)
    assert str(failure) == "the store of the tier cannot be used: there is no bucket 'x'"


async def test_a_wrong_setting_does_not_stop_a_restart(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = await disk_with_tiered_segments()
    disk.rename("/data-tier", "/tier")
    monkeypatch.setattr(Store, "disk", disk, raising=False)
    monkeypatch.setitem(globals(), "ERROR", StoreMisconfigured("403"))
    async with memory_broker(disk, settings=NAMED) as broker:
        await read_all(await broker.connect(), "orders", 4)
        assert [(level, str(fields["error"])) for level, _, fields in logged(caplog)] == [("ERROR", "403")]


@pytest.mark.parametrize("error", [RetriableRemoteStorageError("refused"), ZeroDivisionError("a bug of the plug-in")])
async def test_an_unreachable_store_is_one_warning(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Store, "disk", SimulatedDisk(), raising=False)
    monkeypatch.setitem(globals(), "ERROR", error)
    async with memory_broker(Store.disk, settings=NAMED) as broker:
        await create_topic(await broker.connect(), "t")
        assert len(CHECKS) == 1
        assert [level for level, _, _ in logged(caplog)] == ["WARNING"]


async def test_a_silent_store_delays_the_start_by_five_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Store, "disk", SimulatedDisk(), raising=False)

    class SilentThreads:
        async def run_blocking(self, function: Any) -> None:
            await trio.sleep(60)

    monkeypatch.setattr("kbroker.testing.env.MemoryEnv.threads", lambda *_: SilentThreads())
    began = trio.current_time()
    async with memory_broker(Store.disk, settings=NAMED) as broker:
        assert trio.current_time() - began < 6
        await create_topic(await broker.connect(), "t")
        await trio.sleep(100)
        assert [level for level, _, _ in logged(caplog)] == ["WARNING"]
        assert "no answer" in str(logged(caplog)[0][2]["error"])


async def test_without_tiered_topics_and_settings_the_store_is_not_contacted(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_broker():
        await trio.sleep(1)
    assert not logged(caplog)


async def test_a_directory_that_is_a_file_refuses_a_first_start() -> None:
    disk = SimulatedDisk()
    disk.open("/file", create=True).close()
    with pytest.raises(ExceptionGroup) as raised:
        async with memory_broker(disk, settings={"rsm.config.dir": "/file"}):
            raise AssertionError("it started")
    assert "rsm.config.dir: /file is not a directory" in str(raised.value.exceptions[0])


async def test_an_unmounted_directory_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_broker(settings={"rsm.config.dir": "/mnt/tier"}):
        (only,) = logged(caplog)
        assert only[0] == "WARNING"
        assert "rsm.config.dir: cannot use /mnt" in str(only[2]["error"])


async def test_a_store_without_any_listed_segment_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """The settings of the store were lost: the default directory is empty."""
    disk = await disk_with_tiered_segments({**QUICK, "rsm.config.dir": "/elsewhere"}, tier="/elsewhere")
    async with memory_broker(disk, settings=QUICK) as broker:
        await trio.sleep(10)
        (only,) = [one for one in logged(caplog) if one[0] == "ERROR"]
        assert only[1] == "the store has none of the segments that the metadata list; is it the right one?"
        assert only[2]["asked_for"] == 2
        assert "rsm.config" in str(only[2]["settings"])
        assert "remote.log.storage.manager.class.name" in str(only[2]["settings"])
        assert "/data-tier" in str(only[2]["store"])
        assert any("has none of the segments" in one for one in warnings(broker))
    caplog.clear()
    async with memory_broker(disk, settings={**QUICK, "rsm.config.dir": "/elsewhere"}) as broker:
        await read_all(await broker.connect(), "orders", 4)
        assert not logged(caplog)
        assert not any("has none of the segments" in one for one in warnings(broker))


async def test_a_store_that_lost_some_segments_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    disk = await disk_with_tiered_segments()
    for path, data in disk.image("/data-tier").items():
        if "/orders-" in path and data is not None:
            disk.unlink(path)
    async with memory_broker(disk, settings=QUICK) as broker:
        await until(lambda: bool(logged(caplog)))
        ((level, event, fields),) = logged(caplog)
        assert (level, fields["missing_of"]) == ("WARNING", "orders-0")
        assert "lacks segments" in event
        assert "rsm.config" in fields["settings"]
        assert not any("segments" in one for one in warnings(broker))


def warnings(broker: MemoryBroker) -> list[str]:
    assert broker.node.broker is not None
    return health.warnings(broker.node.broker)


NEW_TOPICS = "new tiered topics cannot be copied to the store yet"


async def test_a_tiered_topic_on_an_unusable_store_is_made_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Store, "disk", SimulatedDisk(), raising=False)
    async with memory_broker(Store.disk, settings=NAMED) as broker:
        client = await broker.connect()
        monkeypatch.setitem(globals(), "ERROR", RetriableRemoteStorageError("down (rsm.config.endpoint)"))
        await create_topic(client, "orders", settings=TIERED)
        await until(lambda: bool(logged(caplog)))
        await create_topic(client, "plain")
        await trio.sleep(1)
    ((level, event, fields),) = logged(caplog)
    assert (level, event, fields["topics"]) == ("WARNING", NEW_TOPICS, "orders")
    assert "rsm.config.endpoint" in str(fields["error"])


async def test_a_probe_leaves_nothing_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    monkeypatch.setattr(Store, "disk", disk, raising=False)
    disk.make_directory("/tier")
    async with memory_broker(disk, settings=NAMED) as broker:
        await create_topic(await broker.connect(), "orders", settings=TIERED)
        await until(lambda: len(CHECKS) == 2)
        await trio.sleep(1)
        assert disk.list("/tier") == []


@pytest.mark.long
async def test_one_probe_runs_at_a_time(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Topics that are made while the store hangs are probed together, once it answers."""
    disk, hanging, run_blocking = SimulatedDisk(), trio.Event(), MemoryThreads.run_blocking
    asked: list[str] = []

    async def run(threads: MemoryThreads, function: Any, *words: Any) -> Any:
        if function.__name__.startswith("check_"):
            asked.append(function.__name__)
            await hanging.wait()
        return await run_blocking(threads, function, *words)

    monkeypatch.setattr(Store, "disk", disk, raising=False)
    async with memory_broker(disk, settings=NAMED) as broker:
        monkeypatch.setattr(MemoryThreads, "run_blocking", run)
        client = await broker.connect()
        for number in range(5):
            await create_topic(client, f"t{number}", settings=TIERED)
            await trio.sleep(60)
        assert asked == ["check_store"]
        monkeypatch.setitem(globals(), "ERROR", RetriableRemoteStorageError("down"))
        hanging.set()
        await trio.sleep(60)
        assert asked == ["check_store"] * 2
    assert [fields["topics"] for _, event, fields in logged(caplog) if event == NEW_TOPICS] == ["t0", "t1, t2, t3, t4"]


async def test_a_restart_checks_the_store_once(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = await disk_with_tiered_segments()
    disk.rename("/data-tier", "/tier")
    monkeypatch.setattr(Store, "disk", disk, raising=False)
    async with memory_broker(disk, settings=NAMED) as broker:
        await read_all(await broker.connect(), "orders", 4)
        await trio.sleep(60)
    assert len(CHECKS) == 1


async def test_a_store_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimulatedDisk()
    monkeypatch.setattr(Store, "disk", disk, raising=False)
    disk.make_directory("/tier")
    async with memory_broker(disk, settings=NAMED) as broker:
        disk.inject(Fault(errno.EROFS, path="/tier/kbroker-probe*"))
        await create_topic(await broker.connect(), "orders", settings=TIERED)
        await until(lambda: bool(logged(caplog)))
    assert "rsm.config.dir: cannot write to /tier" in str(logged(caplog)[0][2]["error"])
