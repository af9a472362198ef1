"""The page's server: bound to this machine, asked by its own page alone, and limited in what it reads.

    GET  /, /explore.css, /explore.js           the page
    GET  /gallery?set=test&start=0&label=3      images to choose from
    POST /fit      the bytes of an image file   the image as the run reads it
    POST /ask      JSON, see `Explorer.question`   what the networks say

An error is a JSON object with one line, ``{"error": ...}``.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import traceback
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from .explorer import Explorer
from .page import POLICY, page_files
from .views import answer_view, fitted_view, gallery_view

MOST_BYTES = 8 << 20
"""Of a request's body."""
PATIENCE = 20
"""Seconds that a connection may say nothing."""
HERE = "127.0.0.1"
NAMES = (HERE, "localhost", "::1")
"""What a browser on this machine calls it. Any other name in a request was made to point here by somebody else."""


class Refused(Exception):
    """A request that is not answered: why, and with which status."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class ExploreServer(ThreadingHTTPServer):
    """Serves the page of an explorer on the loopback interface.

    Args:
        explorer: what answers.
        port: 0: any that is free.
    """

    daemon_threads = True  # at the end, nobody waits for an answer that nobody will read

    def __init__(self, explorer: Explorer, port: int = 0) -> None:
        self.explorer = explorer
        self.files = page_files(explorer)
        try:
            super().__init__((HERE, port), _Handler)
        except OSError as error:
            raise OSError(
                f"cannot listen on port {port} of {HERE} ({error.strerror}); give another --port, or 0 for any free one"
            ) from None

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{HERE}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader who leaves in the middle of an answer is no error; anything else is told."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: ExploreServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "isingformer", ""
    timeout = PATIENCE

    def do_GET(self) -> None:
        """The page, and the images to choose from."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Images and questions."""
        self._answer(self._post)

    def _get(self) -> tuple[str, bytes]:
        self._check_host()
        address = urlsplit(self.path)
        if address.path == "/gallery":
            self._check_sender()
            return _json(self._gallery({name: found[0] for name, found in parse_qs(address.query).items()}))
        if address.path in ("/fit", "/ask"):
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"{address.path} expects POST, got GET")
        if address.path not in self.server.files:
            raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here")
        return self.server.files[address.path]

    def _post(self) -> tuple[str, bytes]:
        self._check_host()
        self._check_sender()
        if self.path not in ("/fit", "/ask"):
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "only /fit and /ask expect POST")
        expected = "application/json" if self.path == "/ask" else "application/octet-stream"
        if self.headers.get_content_type() != expected:  # neither can be sent by another site's form
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"{self.path} expects the content type {expected}")
        body = self._body()
        if self.path == "/fit":
            return _json(fitted_view(self.server.explorer, body))
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            raise ValueError("the question is no JSON") from None
        return _json(answer_view(self.server.explorer, self.server.explorer.question(asked)))

    def _gallery(self, asked: dict[str, str]) -> dict[str, Any]:
        numbers: dict[str, int | None] = {}
        for name, absent in (("start", 0), ("label", None)):
            text = asked.get(name)
            if text is not None and not (text.isascii() and text.isdigit() and len(text) < 10):
                raise ValueError(f"{name} must be a whole number, got {text[:40]!r}")
            numbers[name] = absent if text is None else int(text)
        return gallery_view(self.server.explorer.pool(asked.get("set", "")), numbers["start"] or 0, numbers["label"])

    def _check_host(self) -> None:
        """A page of somebody else whose name points to this machine would otherwise pass for ours."""
        host = self.headers.get("Host", "")
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            name = None
        if name not in NAMES:
            raise Refused(HTTPStatus.FORBIDDEN, f"this page is at {self.server.url}; got the host {host[:80]!r}")

    def _check_sender(self) -> None:
        """Only the page itself may ask: browsers say whose page a request comes from."""
        origin = self.headers.get("Origin")
        own = f"http://{self.headers.get('Host', '')}"
        if (origin is not None and origin != own) or self.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
            raise Refused(HTTPStatus.FORBIDDEN, f"only the page at {self.server.url} may ask")

    def _body(self) -> bytes:
        text = self.headers.get("Content-Length", "")
        if self.headers.get("Transfer-Encoding") or not (text.isascii() and text.isdigit()):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "a request must say how long it is")
        length = int(text) if len(text) < 20 else MOST_BYTES + 1
        if length > MOST_BYTES:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the image is too large ({length / 2**20:.1f} MB); expected at most {MOST_BYTES >> 20} MB",
            )
        body = self.rfile.read(length)
        if len(body) < length:
            raise Refused(HTTPStatus.BAD_REQUEST, f"the request was cut short: {len(body)} of {length} bytes")
        return body

    def _answer(self, find: Callable[[], tuple[str, bytes]]) -> None:
        status = HTTPStatus.OK
        try:
            kind, content = find()
        except Refused as refused:
            status, (kind, content) = refused.status, _error(refused)
        except ValueError as error:
            status, (kind, content) = HTTPStatus.BAD_REQUEST, _error(error)
        except OSError:
            raise
        except Exception as error:  # the page says it, the terminal says where
            traceback.print_exc()
            status, (kind, content) = HTTPStatus.INTERNAL_SERVER_ERROR, _error(error)
        self._send(status, kind, content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses, other methods and broken requests, in the form of all other errors."""
        status = HTTPStatus(code)
        self._send(status, *_error(ValueError(message or status.phrase)))

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        unread = status != HTTPStatus.OK or self._came_with_a_body()
        if unread:
            self.send_header("Connection", "close")
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "POST" if self.command == "GET" else "GET")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        if unread:
            self._drain()

    def _came_with_a_body(self) -> bool:
        """Whether a request that needs no body had one: on a kept connection it would be read as the next request."""
        return self.command != "POST" and ("Content-Length" in self.headers or "Transfer-Encoding" in self.headers)

    def _drain(self) -> None:
        """Read on for a moment: to close upon a sender who is still sending would take the answer away from him."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(1)
            left = 4 * MOST_BYTES
            while left > 0 and (piece := self.connection.recv(1 << 16)):
                left -= len(piece)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal belongs to the command."""


def _json(value: Any) -> tuple[str, bytes]:
    return "application/json", json.dumps(value, allow_nan=False).encode()


def _error(error: Exception) -> tuple[str, bytes]:
    return _json({"error": " ".join(str(error).split()) or type(error).__name__})
