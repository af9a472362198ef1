"""The server, over real sockets of this machine."""

import http.client
import io
import json
import socket
import threading

import numpy as np
import pytest
from PIL import Image

from isingformer.explore import Explorer, ExploreServer, pools_of
from isingformer.explore import server as module
from isingformer.explore.views import answer_view, gallery_view

QUESTION = {"image": {"set": "test", "index": 1}, "passes": 4}
JSON, BYTES = "application/json", "application/octet-stream"


def ask(server, method, path, body=None, **headers):
    """Status, headers and what came back, JSON unpacked."""
    connection = http.client.HTTPConnection(*server.server_address, timeout=20)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        content = response.read()
        kind = response.headers.get_content_type()
        return response.status, response.headers, json.loads(content) if kind == JSON else content
    finally:
        connection.close()


def post(server, question, **headers):
    return ask(server, "POST", "/ask", json.dumps(question), **{"Content_Type": JSON, **headers})


def refused(found, status, *words):
    code, headers, body = found
    assert code == status and headers["Connection"] == "close"
    assert list(body) == ["error"] and len(body["error"].splitlines()) == 1
    for word in words:
        assert word in body["error"]


def test_it_listens_on_this_machine_only(shared_server):
    assert shared_server.socket.getsockname()[0] == "127.0.0.1"
    assert shared_server.url == f"http://127.0.0.1:{shared_server.server_address[1]}/"
    with socket.socket() as other:  # another address of the same machine
        other.settimeout(5)
        with pytest.raises(OSError):
            other.connect(("127.0.0.2", shared_server.server_address[1]))


def test_the_page_is_three_files_that_may_do_little(shared_server):
    for path, kind in (("/", "text/html"), ("/explore.css", "text/css"), ("/explore.js", "text/javascript")):
        status, headers, content = ask(shared_server, "GET", path)
        assert status == 200 and headers.get_content_type() == kind and b"http" not in content
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "*" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
    assert b" style=" not in ask(shared_server, "GET", "/")[2]  # which the policy would not let pass


def test_answers_are_those_of_the_explorer(server, explorer):
    status, _, found = post(server, QUESTION)
    assert status == 200 and found == json.loads(json.dumps(answer_view(explorer, explorer.question(QUESTION))))
    status, _, found = ask(server, "GET", "/gallery?set=test&start=24&label=3")
    assert status == 200 and found == json.loads(json.dumps(gallery_view(explorer.pool("test"), 24, 3)))


def test_an_image_goes_there_and_back(shared_server):
    buffer = io.BytesIO()
    Image.fromarray(np.full((20, 20, 3), 90, np.uint8)).save(buffer, format="PNG")
    status, _, found = ask(shared_server, "POST", "/fit", buffer.getvalue(), Content_Type=BYTES)
    assert status == 200 and found["was"] == "20 x 20 RGB"
    status, _, answer = post(shared_server, {"image": {"pixels": found["pixels"]}, "passes": 2})
    assert status == 200 and answer["passes"] == 2 and answer["label"] is None


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[", "0.0.0.0"])
def test_a_name_that_was_made_to_point_here_is_refused(shared_server, host):
    """DNS rebinding: the browser believes that it talks to another site, and says so in Host."""
    for found in (ask(shared_server, "GET", "/", Host=host), post(shared_server, QUESTION, Host=host)):
        refused(found, 403, "this page is at http://127.0.0.1:")


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1:1", "[::1]:80"])
def test_names_of_this_machine_are_taken_at_any_port(shared_server, host):
    """A port that is forwarded from elsewhere has another number there."""
    assert ask(shared_server, "GET", "/", Host=host)[0] == 200
    assert post(shared_server, QUESTION, Host=host, Origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
    ids=str,
)
def test_other_pages_may_not_ask(shared_server, headers):
    refused(post(shared_server, QUESTION, **headers), 403, "only the page at")
    refused(ask(shared_server, "GET", "/gallery?set=test", **headers), 403, "only the page at")


def test_what_a_form_of_another_page_could_send_is_refused(shared_server):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        refused(post(shared_server, QUESTION, Content_Type=kind), 415, "expects the content type application/json")
        refused(ask(shared_server, "POST", "/fit", b"x", Content_Type=kind), 415, BYTES)


def test_wrong_methods_and_addresses(shared_server):
    refused(ask(shared_server, "GET", "/ask"), 405, "expects POST, got GET")
    refused(ask(shared_server, "POST", "/", b"", Content_Type=BYTES), 405, "only /fit and /ask expect POST")
    for path in ("/nothing", "/../run.json", "//etc/passwd", "/explore.html"):
        refused(ask(shared_server, "GET", path), 404, "nothing here")
    for method in ("PUT", "DELETE", "OPTIONS"):
        status, _, content = ask(shared_server, method, "/ask")
        assert status == 501 and list(content) == ["error"] and method in content["error"]  # as all other errors


def test_a_body_that_is_too_large_is_refused_and_the_line_is_read(shared_server):
    body = bytes(module.MOST_BYTES + 1)
    refused(
        ask(shared_server, "POST", "/fit", body, Content_Type=BYTES), 413, "too large (8.0 MB); expected at most 8 MB"
    )


def test_a_body_that_only_claims_to_be_large_is_not_waited_for(shared_server):
    with socket.create_connection(shared_server.server_address, timeout=10) as client:
        head = f"POST /fit HTTP/1.1\r\nHost: localhost\r\nContent-Type: {BYTES}\r\nContent-Length: {10**30}\r\n\r\n"
        client.sendall(head.encode())
        assert b" 413 " in client.recv(100)


@pytest.mark.parametrize("line", ["Transfer-Encoding: chunked", "Content-Length: -1", "Content-Length: 1e3", "X: y"])
def test_a_body_must_say_how_long_it_is(shared_server, line):
    with socket.create_connection(shared_server.server_address, timeout=10) as client:
        client.sendall(f"POST /ask HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\n{line}\r\n\r\n".encode())
        assert b" 411 " in client.recv(100)


@pytest.mark.parametrize("path", ["/explore.css", "/gallery?set=test"])
def test_the_body_of_a_request_that_needs_none_is_no_request(shared_server, path):
    body = "GET /fit HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(shared_server.server_address, timeout=10) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        client.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert said.startswith(b"HTTP/1.1 200 ") and said.count(b"HTTP/1.1 ") == 1
    assert b"\r\nConnection: close\r\n" in said


def test_a_body_that_is_cut_short(shared_server):
    with socket.create_connection(shared_server.server_address, timeout=10) as client:
        client.sendall(
            f"POST /ask HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\nContent-Length: 9\r\n\r\n{{}}".encode()
        )
        client.shutdown(socket.SHUT_WR)
        assert b" 400 " in client.recv(100)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"3", "must be an object"),
        (b"{}", "image"),
    ],
    ids=["cut", "bytes", "deep", "number", "empty"],
)
def test_questions_that_are_none(shared_server, body, words):
    refused(ask(shared_server, "POST", "/ask", body, Content_Type=JSON), 400, words)


@pytest.mark.parametrize(
    ("query", "words"),
    [("", "no images ''"), ("set=train", "no images 'train'"), ("set=test&start=x", "start must be a whole number"),
     ("set=test&start=9999", "start must be 0 to 359"), ("set=test&label=10", "no class 10")],
)  # fmt: skip
def test_galleries_that_are_none(shared_server, query, words):
    refused(ask(shared_server, "GET", f"/gallery?{query}"), 400, words)


def test_an_image_that_is_none_is_a_line(shared_server):
    refused(ask(shared_server, "POST", "/fit", b"GIF89a, not really", Content_Type=BYTES), 400, "the file is")


def test_questions_at_once_are_answered_one_by_one_and_rightly(server, explorer, run, monkeypatch):
    """All ask for different T and images; the model, which holds the drawn network, may serve one at a time."""
    inside, most = [], []
    see = explorer.run.inputs

    def inputs(x):
        inside.append(1)
        most.append(len(inside))
        found = see(x)
        inside.pop()
        return found

    monkeypatch.setattr(explorer.run, "inputs", inputs)
    questions = [{"image": {"set": "test", "index": n % 3}, "passes": 2 + n, "rotate": 10 * (n % 2)} for n in range(8)]
    found = [None] * len(questions)

    def work(n):
        found[n] = post(server, questions[n])

    workers = [threading.Thread(target=work, args=(n,)) for n in range(len(questions))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    monkeypatch.undo()
    alone = Explorer(run, pools_of(run), most=40)
    for question, (status, _, answer) in zip(questions, found, strict=True):
        assert status == 200
        assert answer == json.loads(json.dumps(answer_view(alone, alone.question(question))))
    assert max(most) == 1


def test_an_error_that_nobody_expected_is_told_and_the_next_question_answered(server, explorer, monkeypatch, capfd):
    with monkeypatch.context() as patch:
        patch.setattr(Explorer, "see", lambda self, question: 1 / 0)
        refused(post(server, QUESTION), 500, "division by zero")
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert post(server, QUESTION)[0] == 200


def test_a_reader_who_leaves_is_no_error(server, capfd):
    body = json.dumps(QUESTION)
    with socket.create_connection(server.server_address) as client:
        client.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
        )  # leave with a reset
        head = f"POST /ask HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall((head + body).encode())
    assert post(server, QUESTION)[0] == 200
    assert capfd.readouterr().err == ""


def test_a_port_that_is_taken_is_said(shared_server, explorer):
    port = shared_server.server_address[1]
    with pytest.raises(OSError, match=f"cannot listen on port {port} of 127.0.0.1 .*another --port, or 0"):
        ExploreServer(explorer, port)
