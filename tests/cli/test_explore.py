"""`isingformer explore`: it says where the page is, serves it, and ends with Ctrl-C."""

import json
import re
import signal
import socket
import urllib.request

import numpy as np
import pytest

from isingformer.cli import explore
from isingformer.explore import ExploreServer


def asked(url, question):
    request = urllib.request.Request(
        f"{url}ask", json.dumps(question).encode(), {"Content-Type": "application/json"}
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=20) as response:
        return json.load(response)


def test_it_serves_until_ctrl_c_and_says_what_predict_says(start, done, trained, files):
    process = start("explore", trained, "--samples", "8", "--seed", "3")
    line = process.stdout.readline()
    assert line.startswith(f"{trained} is at http://127.0.0.1:") and line.endswith(" (Ctrl-C ends it)\n")
    url = re.search(r"http:\S+", line)[0]
    found = asked(url, {"image": {"set": "test", "index": 0}, "passes": 8})
    (same,) = json.loads(done("predict", trained, files[0], "--samples", "8", "--seed", "3", "--json"))["images"]
    probabilities = list(same["probabilities"].values())
    assert [float(row["mean"]) for row in found["bars"]] == pytest.approx(probabilities, abs=6e-4)
    assert found["likely"]["ends"] == f"{same['low']:.3f} to {same['high']:.3f}"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "\nended\n", "")


@pytest.fixture
def at_once(monkeypatch):
    """Serving ends as soon as it begins; what was served."""
    served = []

    def serve(server):
        served.append(server)
        raise KeyboardInterrupt

    monkeypatch.setattr(ExploreServer, "serve_forever", serve)
    return served


def test_as_json_and_in_the_browser(done, trained, at_once, monkeypatch):
    opened = []
    monkeypatch.setattr(explore.webbrowser, "open", opened.append)
    found = json.loads(done("explore", trained, "--json", "--open", "--samples", "30", "--level", "0.8"))
    assert opened == [found["url"]] and found["samples"] == 30 and found["level"] == 0.8
    (server,) = at_once
    assert server.explorer.most == 30 and server.explorer.level == 0.8
    assert [pool.name for pool in server.explorer.pools] == ["validation", "test"]


def test_other_images_to_pick_from(done, trained, at_once, write_folder, tmp_path):
    images = [np.full((12, 16), value, np.uint8) for value in (0, 60, 120, 180)]
    write_folder(tmp_path / "pets", cat=images, dog=images)
    done("explore", trained, "--data", tmp_path / "pets")
    (pool,) = at_once[0].explorer.pools
    assert pool.name == "pets, test" and pool.classes == ("cat", "dog") and pool.images.x.shape[1:] == (1, 8, 8)
    done("explore", trained, "--data", "digits")
    assert at_once[1].explorer.pools[0].name == "digits, test"


def test_bad_input_is_a_line(refused, trained, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused("explore", trained, "--port", port, names=[f"cannot listen on port {port}", "another --port"])
    refused("explore", tmp_path / "nothing", names=[tmp_path / "nothing"])
    refused("explore", trained, "--port", "65536", names=["--port", "0 to 65535", "'65536'"])
    refused("explore", trained, "--port", "-1", names=["--port"])
    refused("explore", trained, "--samples", "0", names=["--samples"])
    refused("explore", trained, "--level", "1", names=["level must be in (0, 1)"])
    refused("explore", trained, "--data", tmp_path / "none", names=[tmp_path / "none", "does not exist"])
    refused("explore", trained, "--device", "gpu", names=["device"])
