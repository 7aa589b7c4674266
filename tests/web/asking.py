"""An HTTP client over the streams of an environment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import h11
import trio

from kbroker.runtime.net_ports import Env, Stream

ADDRESS = ("pages.example", 9644)


@dataclass
class Got:
    """One complete reply."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Browser:
    """One connection."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.machine = h11.Connection(h11.CLIENT)

    @classmethod
    async def connect(cls, env: Env) -> Browser:
        return cls(await env.connect(*ADDRESS))

    async def get(self, path: str, *, method: str = "GET", body: bytes = b"", authorization: str | None = None) -> Got:
        """Send a request and read the reply; the connection can be reused."""
        if self.machine.our_state is not h11.IDLE:
            self.machine.start_next_cycle()
        headers = [("Host", "x"), *([("Content-Length", str(len(body)))] if body else [])]
        if authorization is not None:
            headers.append(("Authorization", authorization))
        request = self.machine.send(h11.Request(method=method, target=path, headers=headers))
        ended = self.machine.send(h11.Data(data=body)), self.machine.send(h11.EndOfMessage())
        await self.stream.send([part for part in (request, *ended) if part])
        return await self.reply()

    async def reply(self) -> Got:
        """The reply to the last request."""
        got = Got(0, {}, b"")
        while True:
            event = self.machine.next_event()
            if event is h11.NEED_DATA:
                self.machine.receive_data(await self.stream.receive(65536))
            elif isinstance(event, h11.Response):
                got.status = event.status_code
                got.headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                got.body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return got

    async def send(self, data: bytes) -> None:
        """Send anything."""
        await self.stream.send([data])

    async def rest(self) -> bytes:
        """All bytes until the server closes the connection."""
        data = b""
        try:
            while more := await self.stream.receive(65536):
                data += more
        except trio.BrokenResourceError:
            pass  # the server closed with unread bytes
        return data


async def get(env: Env, path: str, *, method: str = "GET", authorization: str | None = None) -> Got:
    """Request a page on a new connection."""
    browser = await Browser.connect(env)
    try:
        return await browser.get(path, method=method, authorization=authorization)
    finally:
        browser.stream.close()
