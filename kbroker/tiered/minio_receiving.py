"""What a store answers, straight into the memory where it belongs."""

from __future__ import annotations

import socket
import struct
from http.client import HTTPResponse
from io import BufferedReader

from urllib3.response import BaseHTTPResponse

from kbroker.tiered.minio_client import BLOCK_BYTES, Deadline


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
    received = stream.readinto1(place)
    connected = getattr(stream.raw, "_sock", None)
    if received and received < len(place) and type(connected) is socket.socket:  # then it holds nothing back
        received += _receive_all(connected, place[received:], left)
    body.length -= received
    if not received or not body.length:
        body._close_conn()  # type: ignore[attr-defined]  # as its own readinto does: the connection is free then
    return received


def _receive_all(connected: socket.socket, place: memoryview, left_s: float) -> int:
    """As much as fits, or what came before it ended or paused for as long as it may."""
    pause_s = connected.gettimeout()
    wait_us = max(1, int((left_s if pause_s is None else min(pause_s, left_s)) * 1e6))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", *divmod(wait_us, 1_000_000)))
    connected.settimeout(None)
    try:
        return connected.recv_into(place, len(place), socket.MSG_WAITALL)
    except BlockingIOError:
        return 0
    finally:
        connected.settimeout(pause_s)
