"""This file holds the HTTP side of a test Hub: connections, how a reply is sent, and how that is disturbed."""

from __future__ import annotations

import contextlib
import io
import socket
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote

from hub_faults import Fault, Reply, Request

if TYPE_CHECKING:
    from hub_server import Hub

PIECE = 1 << 20  # bytes read and sent at once


class Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for every handler, and no socket is left to the garbage collector
    request_queue_size = 128

    def __init__(self, name: str, hub: Hub) -> None:
        self.name, self.hub = name, hub
        self.open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def close(self) -> None:
        self.shutdown()
        with self.hub.lock:
            for connection in self.open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is its own business; anything else is a mistake of this server, raised when it closes."""
        error = sys.exception()
        if error and not isinstance(error, ConnectionError):
            self.hub.errors.append(error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes: without this each small answer costs 40 ms
    server: Server

    def setup(self) -> None:
        super().setup()
        with self.server.hub.lock:
            self.server.open.add(self.connection)
            self.server.hub.connections += 1

    def finish(self) -> None:
        with self.server.hub.lock:
            self.server.open.discard(self.connection)
        super().finish()

    def log_message(self, *_: object) -> None:
        """Nothing: `Hub.requests` is the log."""

    def do_GET(self) -> None:
        hub = self.server.hub
        path, _, query = self.path.partition("?")
        other = hub.cdn_url if self.server.name == "hub" else hub.url
        request = Request(
            host=self.server.name, mirror=other + self.path, method=self.command, target=self.path,
            path=unquote(path), query=parse_qs(query),
            headers={name.lower(): value for name, value in self.headers.items()},
            form=self.rfile.read(int(self.headers.get("Content-Length") or 0)),
        )  # fmt: skip
        faults = hub.begin(request)
        try:
            self._answer(request, faults)
        finally:
            hub.end()

    do_HEAD = do_POST = do_GET  # noqa: N815 (names that http.server looks for)

    def _answer(self, request: Request, faults: list[Fault]) -> None:
        early = [fault for fault in faults if fault.kind == "call"]
        for fault in early:
            fault.apply(Reply(), request)
        reply = self.server.hub.reply(request)
        for fault in faults:
            if fault not in early:
                fault.apply(reply, request)
        request.status = 0 if reply.drop else reply.status
        self._send(reply, request)

    def _send(self, reply: Reply, request: Request) -> None:
        silent = reply.stall if reply.stall_at is None else 0
        if reply.drop or self._closes_within(silent):
            self._hang_up()
            return
        self.send_response(reply.status)
        for name, value in (reply.headers | {"Content-Length": str(reply.end - reply.start)}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        for piece in _pieces(reply):
            if request.body_bytes == reply.stall_at and self._closes_within(reply.stall):
                break
            left = memoryview(piece)
            request.body_bytes += len(left)
            try:
                while left:
                    left = left[self.connection.send(left) :]
            except OSError as error:
                request.body_bytes -= len(left)
                raise ConnectionAbortedError from error
            if reply.rate and self._closes_within(len(piece) / reply.rate):
                break
        if request.body_bytes < reply.end - reply.start:
            self._hang_up()

    def _closes_within(self, seconds: float) -> bool:
        """Waits, and tells whether the Hub was closed meanwhile."""
        return seconds > 0 and self.server.hub.stopped.wait(seconds)

    def _hang_up(self) -> None:
        """Ends the connection at once; what was sent before still arrives."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def _pieces(reply: Reply) -> Iterator[bytes]:
    """The body piece by piece: a file of any size is never held in memory, and a piece ends where a fault begins."""
    end = reply.end if reply.cut is None else min(reply.end, reply.start + reply.cut)
    most = PIECE if reply.rate is None else max(1, min(PIECE, int(reply.rate / 20)))
    with reply.body.open("rb") if isinstance(reply.body, Path) else io.BytesIO(reply.body) as stream:
        at = reply.start
        while at < end:
            stop = min(end, at + most)
            if reply.stall_at is not None and at < reply.start + reply.stall_at:
                stop = min(stop, reply.start + reply.stall_at)
            stream.seek(at)
            piece = stream.read(stop - at)
            if not piece:
                return
            yield piece
            at += len(piece)
