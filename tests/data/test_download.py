"""Downloads against a server on this machine that breaks off, lies, stalls and refuses."""

import time

import pytest

from isingformer.data import DataError
from local_server import CONTENT, md5, names


def part_in(tmp_path, content):
    (tmp_path / "below").mkdir(exist_ok=True)
    part = tmp_path / "below" / "a.bin.part"
    part.write_bytes(content)
    return part


def test_a_file_arrives_whole_and_alone(get):
    told = []
    file = get(progress=lambda done, total: told.append((done, total)))
    assert file.read_bytes() == CONTENT
    assert names(file.parent) == ["a.bin"]
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_file_that_is_there_is_not_asked_for_again(get, server):
    get()
    get()
    assert len(server.requests) == 1


def test_another_file_of_that_name_is_replaced(get, tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.bin").write_bytes(b"old")
    assert get().read_bytes() == CONTENT


def test_a_broken_connection_is_resumed(get, server):
    server.plan = [("break", 100_000), ("break", 50_000)]
    assert get().read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, "bytes=100000-", "bytes=150000-"]


def test_what_arrived_stays_for_the_next_call(get, server, tmp_path):
    server.plan = [("break", 1_000)] * 3
    with pytest.raises(ConnectionError, match=r"broke after 3,000 of 300,000 bytes") as error:
        get()
    assert server.url("/a.bin") in str(error.value)
    assert "\n" not in str(error.value)
    assert names(tmp_path / "below") == ["a.bin.part"]
    assert (tmp_path / "below" / "a.bin.part").read_bytes() == CONTENT[:3_000]
    server.requests.clear()
    file = get()
    assert server.requests == [("/a.bin", "bytes=3000-")]
    assert file.read_bytes() == CONTENT
    assert names(file.parent) == ["a.bin"]


def test_a_server_without_ranges_starts_anew(get, server, tmp_path):
    part_in(tmp_path, CONTENT[:1_000])
    server.ranges = False
    told = []
    assert get(progress=lambda done, _: told.append(done)).read_bytes() == CONTENT
    assert server.requests == [("/a.bin", "bytes=1000-")]
    assert told[-1] == len(CONTENT)


def test_a_longer_part_is_cut_where_the_server_starts_anew(get, server, tmp_path):
    part_in(tmp_path, b"x" * (len(CONTENT) + 1))
    server.ranges = False
    assert get().read_bytes() == CONTENT
    assert len(server.requests) == 1


def test_a_whole_part_is_only_verified(get, server, tmp_path):
    part_in(tmp_path, CONTENT)
    file = get()
    assert server.requests == []
    assert file.read_bytes() == CONTENT
    assert names(file.parent) == ["a.bin"]


@pytest.mark.parametrize("rubbish", [b"x" * 1_000, b"x" * len(CONTENT), CONTENT + b"x", CONTENT[:-1] + b"x"], ids=len)
def test_a_part_with_wrong_bytes_does_no_harm(get, tmp_path, rubbish):
    part_in(tmp_path, rubbish)
    file = get()
    assert file.read_bytes() == CONTENT
    assert names(file.parent) == ["a.bin"]


def test_a_server_that_sends_another_part_is_asked_for_everything(get, server, tmp_path):
    part_in(tmp_path, CONTENT[:1_000])
    server.plan = [("shift", 7)]
    assert get().read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == ["bytes=1000-", None]


def test_wrong_bytes_are_refused_and_deleted(get, server, tmp_path):
    server.files["/a.bin"] = b"something else"
    with pytest.raises(DataError) as error:
        get()
    line = str(error.value)
    assert server.url("/a.bin") in line and md5(CONTENT) in line and md5(b"something else") in line
    assert str(tmp_path / "below" / "a.bin") in line and "\n" not in line
    assert names(tmp_path / "below") == []


def test_wrong_bytes_leave_the_old_file(get, server, tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.bin").write_bytes(b"old")
    server.files["/a.bin"] = b"something else"
    with pytest.raises(DataError):
        get()
    assert (tmp_path / "below" / "a.bin").read_bytes() == b"old"


def test_more_than_promised_is_not_read(get, server):
    server.plan = [("more", 5_000)]
    assert get().read_bytes() == CONTENT


def test_more_than_the_file_without_a_promise_is_wrong(get, server, tmp_path):
    server.promise, server.plan = False, [("more", 5_000)]
    with pytest.raises(DataError, match="md5"):
        get()
    assert names(tmp_path / "below") == []


@pytest.mark.parametrize("promise", [True, False])
def test_too_much_is_refused(get, server, tmp_path, promise):
    server.promise = promise
    with pytest.raises(ConnectionError, match="200,000"):
        get(largest=200_000)
    assert names(tmp_path / "below") == []


def test_a_length_that_is_not_promised_is_no_obstacle(get, server):
    server.promise = False
    told = []
    assert get(progress=lambda *seen: told.append(seen)).read_bytes() == CONTENT
    assert told[-1] == (len(CONTENT), None)


@pytest.mark.parametrize("code", [404, 403, 410])
def test_a_refusal_is_final(get, server, tmp_path, code):
    server.plan = [("answer", code)] * 5
    with pytest.raises(ConnectionError, match=str(code)):
        get()
    assert len(server.requests) == 1
    assert names(tmp_path / "below") == []


@pytest.mark.parametrize("code", [500, 503, 429])
def test_a_server_in_trouble_is_asked_again(get, server, code):
    server.plan = [("answer", code)] * 2
    assert get().read_bytes() == CONTENT
    server.plan = [("answer", code)] * 5
    with pytest.raises(ConnectionError, match=str(code)):
        get(content=b"other")
    assert len(server.requests) == 3 + 3


def test_a_stalled_connection_ends_and_is_resumed(get, server):
    server.plan = [("stall", 100_000)]
    began = time.monotonic()
    assert get(timeout=0.3).read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, "bytes=100000-"]
    assert time.monotonic() - began < 10


def test_silence_ends(get, server, tmp_path):
    server.plan = [("silence", 0)]
    with pytest.raises(ConnectionError, match=r"no answer within 0\.3 s"):
        get(timeout=0.3)
    assert names(tmp_path / "below") == []


def test_the_next_address_is_tried(get, server):
    server.files["/b.bin"] = CONTENT
    server.files["/page.html"] = b"<html>this server has moved</html>"
    dead = "http://127.0.0.1:9/a.bin"  # the discard port: nobody listens
    assert get(dead, server.url("/none"), server.url("/page.html"), server.url("/b.bin")).read_bytes() == CONTENT


def test_the_next_address_goes_on_where_the_first_broke_off(get, server):
    server.files["/b.bin"] = CONTENT
    server.plan = [("break", 1_000)] * 3
    assert get(server.url("/a.bin"), server.url("/b.bin")).read_bytes() == CONTENT
    assert server.requests[-1] == ("/b.bin", "bytes=3000-")


def test_every_failure_is_named_in_one_line(get, server, tmp_path):
    dead = "http://127.0.0.1:9/a.bin"
    with pytest.raises(ConnectionError) as error:
        get(dead, server.url("/none"))
    line = str(error.value)
    assert dead in line and server.url("/none") in line and "404" in line and "a.bin" in line and "\n" not in line
    assert names(tmp_path / "below") == []


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/a", "/etc/hostname", "data:,abc"])
def test_only_the_web_is_asked(get, tmp_path, url):
    with pytest.raises(ValueError, match="http") as error:
        get(url)
    assert url in str(error.value)
    assert names(tmp_path) == []


@pytest.mark.parametrize("kind", ["file", "ftp"])
def test_a_server_cannot_send_us_elsewhere_than_the_web(get, server, tmp_path, kind):
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    server.plan = [("redirect", f"{kind}://127.0.0.1{secret}")]
    with pytest.raises(ConnectionError, match=r"not allowed|unknown url type"):
        get()
    server.plan = [("redirect", server.url("/b.bin"))]
    server.files["/b.bin"] = CONTENT
    assert get().read_bytes() == CONTENT


def test_a_file_where_the_folder_should_be(get, tmp_path):
    (tmp_path / "below").write_text("in the way")
    with pytest.raises(NotADirectoryError, match="below is a file"):
        get()


def test_an_error_in_the_progress_is_not_the_disks(get, tmp_path):
    def leave(done, total):
        raise BrokenPipeError("nobody looks")

    with pytest.raises(BrokenPipeError, match="nobody looks"):
        get(progress=leave)
    assert names(tmp_path / "below") == ["a.bin.part"]
    assert get().read_bytes() == CONTENT
