"""Downloads that are killed, meet a full disk, or want the same file at the same time."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from isingformer.data._turns import own_part
from local_server import CONTENT, md5, names

PROGRAM = """
import resource, signal, sys
from pathlib import Path
from isingformer.data.download import download
url, file, md5, limit = sys.argv[1:]
if int(limit):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
try:
    download([url], Path(file), md5=md5, pause=0)
except OSError as error:
    print(error)
"""


def start(server, file, content=CONTENT, limit=0):
    command = [sys.executable, "-c", PROGRAM, server.url("/a.bin"), str(file), md5(content), str(limit)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_a_full_disk_is_one_clear_line_and_nothing_stays(server, tmp_path):
    with start(server, tmp_path / "a.bin", limit=100_000) as process:
        output, _ = process.communicate(timeout=60)
    assert output.startswith(f"cannot write {tmp_path / 'a.bin'}: File too large;") and output.count("\n") == 1
    assert names(tmp_path) == []


def test_a_killed_download_is_resumed(get, server, tmp_path):
    (tmp_path / "below").mkdir()
    part = tmp_path / "below" / "a.bin.part"
    server.plan = [("stall", 100_000)]
    with start(server, tmp_path / "below" / "a.bin") as process:
        end = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size == 100_000):
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert names(part.parent) == ["a.bin.part"]
    assert get().read_bytes() == CONTENT
    assert server.requests == [("/a.bin", None), ("/a.bin", "bytes=100000-")]
    assert names(part.parent) == ["a.bin"]


def test_two_processes_take_turns(get, server, tmp_path):
    server.plan = [("stall", 100_000)]
    with start(server, tmp_path / "below" / "a.bin") as first, ThreadPoolExecutor(1) as pool:
        end = time.monotonic() + 60
        while not server.requests:
            assert time.monotonic() < end and first.poll() is None
            time.sleep(0.01)
        second = pool.submit(get)
        time.sleep(0.3)  # time enough to send a request, if it did not wait
        assert len(server.requests) == 1 and not second.done()
        server.released.set()  # the stalled request ends as a broken connection
        assert first.communicate(timeout=60) == ("", None)
        assert second.result(timeout=60).read_bytes() == CONTENT
    assert server.requests == [("/a.bin", None), ("/a.bin", "bytes=100000-")]
    assert names(tmp_path / "below") == ["a.bin"]


def test_a_process_that_waited_in_vain_begins_anew(get, tmp_path):
    """The one before it gave up and removed the part: what was waited for is no file any more."""
    (tmp_path / "below").mkdir()
    with ThreadPoolExecutor(1) as pool:
        with own_part(tmp_path / "below" / "a.bin"):
            waiting = pool.submit(get)
            time.sleep(0.3)  # for it to reach the lock; too short a time only makes the test easier
        assert waiting.result(timeout=60).read_bytes() == CONTENT
    assert names(tmp_path / "below") == ["a.bin"]


def test_without_locks_each_process_has_a_part_of_its_own(get, server, tmp_path, monkeypatch):
    monkeypatch.setattr("isingformer._locks.fcntl", None)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.bin.part").write_bytes(CONTENT[:1_000])
    with own_part(tmp_path / "below" / "a.bin") as part:
        assert str(os.getpid()) in part.name
    file = get()
    assert file.read_bytes() == CONTENT
    assert server.requests == [("/a.bin", None)]
    assert names(file.parent) == ["a.bin", "a.bin.part"]  # the other part is somebody else's
