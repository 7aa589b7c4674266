"""What a store answers, straight into the memory where it belongs."""

from __future__ import annotations

import socket
import struct
from http.client import HTTPResponse
from io import BufferedReader
from typing import Final

from urllib3.response import BaseHTTPResponse

from kbroker.tiered.minio_client import BLOCK_BYTES, Deadline

_AT_A_TIME: Final = 512 << 10
"""What has to have come before the system wakes the thread that waits. For each piece of 64 KiB, as it would by itself,
receiving 1 GB over loopback takes 0.28 s of processor time, and 0.17 s this way; larger ones win nothing more.
"""


def receive_into(response: BaseHTTPResponse, view: memoryview, deadline: Deadline) -> int:
    """What comes of a body, into a place that is not empty: as much as fits, unless it is slow; 0 at its end.

    urllib3 has only `read1`, which makes a new object of each piece, to be copied from. So this reads where http.client
    does, and counts down to the end of the body as that does. A plain socket fills the place in one call: whoever comes
    back for each piece that has arrived waits for the interpreter each time.
    """
    left = deadline.seconds_left()
    body = getattr(response, "_fp", None)
    stream = getattr(body, "fp", None)
    if isinstance(body, HTTPResponse) and stream is None:
        return 0
    if not isinstance(body, HTTPResponse) or not isinstance(stream, BufferedReader) or body.chunked:
        piece = response.read1(min(len(view), BLOCK_BYTES))
        view[: len(piece)] = piece
        return len(piece)
    assert body.length is not None, "the length of a range is known"
    place = view[: body.length]
    connected = getattr(stream.raw, "_sock", None)
    if type(connected) is socket.socket:
        held = len(stream.peek())
        received = 0
        if 0 < held < len(place):
            received = _receive_all(connected, place[held:], body.length - held, left)
        # Last: fresh memory is mapped where it is first written, and nobody waits for the interpreter in recv_into.
        received += stream.readinto1(place[:held]) if held else 0
    else:
        received = stream.readinto1(place)
    body.length -= received
    if not received or not body.length:
        body._close_conn()  # type: ignore[attr-defined]  # as its own readinto does: the connection is free then
    return received


def _receive_all(connected: socket.socket, place: memoryview, left_bytes: int, left_s: float) -> int:
    """As much as fits, or what came before it ended or paused for as long as it may; left_bytes are still to come."""
    pause_s = connected.gettimeout()
    wait_us = max(1, int((left_s if pause_s is None else min(pause_s, left_s)) * 1e6))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", *divmod(wait_us, 1_000_000)))
    connected.settimeout(None)
    try:
        # Whoever waits for so much must be sure that so much will come.
        eagerly = min(len(place), left_bytes - _AT_A_TIME)
        received = 0
        if eagerly >= _AT_A_TIME:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _AT_A_TIME)
            try:
                received = _wait_for(connected, place[:eagerly])
            finally:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            if received < eagerly:  # there may be more, though too little to have been woken for
                return received + _wait_for(connected, place[received:], socket.MSG_DONTWAIT)
        return received + (_wait_for(connected, place[received:]) if received < len(place) else 0)
    finally:
        connected.settimeout(pause_s)


def _wait_for(connected: socket.socket, place: memoryview, flags: int = socket.MSG_WAITALL) -> int:
    """All that fits, or what came until it ended, or paused for too long."""
    try:
        return connected.recv_into(place, len(place), flags)
    except BlockingIOError:
        return 0
