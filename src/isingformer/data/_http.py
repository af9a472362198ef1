"""Requests that ask for the rest of a file, over http and https alone."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from .._version import __version__

CHUNK = 2**16
_AGAIN = {408, 429, 500, 502, 503, 504}  # answers that may be different in a second


class Trouble(Exception):
    """An address did not deliver; `again` tells whether asking it once more may help."""

    def __init__(self, why: object, *, again: bool) -> None:
        super().__init__(" ".join(str(why).split()))
        self.again = again


class BadPart(Trouble):
    """What is kept of the file cannot be gone on with, for example because it is longer than the file."""


def ask(url: str, start: int, timeout: float) -> Any:
    """The server's answer, an `http.client.HTTPResponse`, to a request for everything from byte `start` on."""
    request = urllib.request.Request(url, headers={"User-Agent": f"isingformer/{__version__}"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        return _opener().open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and start:
                raise BadPart("has fewer bytes than were kept of it", again=True) from None
            raise Trouble(f"answered {error.code} {error.reason}", again=error.code in _AGAIN) from None
    except urllib.error.URLError as error:  # no such host, nobody listens, a bad certificate: the same in a second
        raise Trouble(error.reason, again=False) from None
    except TimeoutError:
        raise Trouble(f"no answer within {timeout:g} s", again=False) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Trouble(f"no answer ({error or type(error).__name__})", again=True) from None


def _opener() -> urllib.request.OpenerDirector:
    """Opens http and https alone, also when a server sends the request elsewhere: no files, no ftp."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def chunks(answer: Any, expected: int | None) -> Iterator[bytes]:
    """What the server sends, as it arrives; never more than it promised."""
    got = 0
    while expected is None or got < expected:
        try:
            chunk = answer.read1(CHUNK if expected is None else min(CHUNK, expected - got))
        except TimeoutError:
            raise Trouble("the connection fell silent", again=True) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Trouble(f"the connection broke ({error or type(error).__name__})", again=True) from None
        if not chunk:
            return
        got += len(chunk)
        yield chunk
