"""The installed command, from before its package is loaded."""

import os
import signal
import subprocess
import sys
import time
from importlib.metadata import entry_points

INTERRUPTING = """
import sys, types

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":  # as Ctrl-C does there
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
import isingformer_command
sys.exit(isingformer_command.main())
"""


def test_what_is_installed_runs_the_command(monkeypatch):
    (found,) = entry_points(group="console_scripts", name="isingformer")
    monkeypatch.setattr("isingformer.cli.main", lambda: 17)
    assert found.load()() == 17


def test_an_interruption_while_torch_is_loaded_is_one_line():
    ended = subprocess.run([sys.executable, "-c", INTERRUPTING], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "isingformer: interrupted\n")


def test_a_real_one_is_too():
    """Sent once the process says that it begins to load; however far that has come, no traceback is seen."""
    begin = "import sys, isingformer_command; print('loading', flush=True); sys.exit(isingformer_command.main())"
    with subprocess.Popen(
        [sys.executable, "-c", begin, "data", "digits"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "loading\n"
        time.sleep(0.3)
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert "Traceback" not in said and process.returncode in (0, 130)
