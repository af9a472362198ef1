"""A server of an explorer for the length of a test."""

import threading
from contextlib import contextmanager

from isingformer.explore import ExploreServer


@contextmanager
def serving(explorer):
    with ExploreServer(explorer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
