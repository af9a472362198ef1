"""A web server on this machine that can be told to misbehave."""

import hashlib
import random
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONTENT = random.Random(1).randbytes(300_000)


def md5(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class LocalServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = {}  # bytes by path
        self.requests = []  # (path, Range header or None), as they came
        self.plan = []  # what to do with the next requests, one entry each; afterwards all goes well
        self.ranges = True  # whether it sends a part when asked for one
        self.promise = True  # whether it says how long the file is
        self.released = threading.Event()  # lets go of stalled requests

    def url(self, path):
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


@contextmanager
def local_server(**files):
    server = LocalServer()
    server.files.update({f"/{name}": content for name, content in files.items()})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.requests.append((self.path, wanted))
        what, number = server.plan.pop(0) if server.plan else ("serve", 0)
        if what == "answer":
            self.send_error(number)
            return
        if what == "silence":
            server.released.wait(30)
            return
        if what == "redirect":
            self.send_response(302)
            self.send_header("Location", number)
            self.end_headers()
            return
        content = server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.ranges else 0
        if start >= len(content) > 0:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            first = start + number if what == "shift" else start
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        if server.promise:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        self.wfile.write(body[:number] if what in ("break", "stall") else body)
        self.wfile.flush()
        if what == "stall":
            server.released.wait(30)
        elif what == "more":
            self.wfile.write(bytes(number))
