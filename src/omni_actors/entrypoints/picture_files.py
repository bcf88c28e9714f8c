"""Pictures that clients fetch by URL: each under a token that nobody can guess, for a while."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import trio

from omni_actors.protocol.errors import OmniError, invalid_request, too_large

FILES = "/v1/images/files/"
"""Begin of the paths of kept pictures. The token behind it opens one picture, so that no API key is needed."""

TOKEN_BYTES = 32
"""Random bytes of a token."""


@dataclass(frozen=True, slots=True)
class PictureFile:
    """An encoded picture that waits to be fetched."""

    data: bytes
    format: str
    until: float
    """Trio time at which the picture is forgotten."""


class PictureFiles:
    """The pictures of a deployment that clients may fetch by URL, bounded in bytes and in time.

    The oldest picture is dropped first, perhaps before its time, when a new one needs its room. Pictures past their
    time are dropped with the next picture or question.

    Args:
        max_bytes: Most bytes of all pictures together; 0 keeps none.
        keep_s: Seconds for which a picture is kept.
        clock: The time in seconds.
    """

    def __init__(self, max_bytes: int, keep_s: float, clock: Callable[[], float] = trio.current_time) -> None:
        self.max_bytes = max_bytes
        self.keep_s = keep_s
        self.bytes = 0
        """Bytes of the pictures that are kept now."""
        self._clock = clock
        self._files: OrderedDict[str, PictureFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def check(self) -> None:
        """Raise 400 if this deployment keeps no pictures."""
        if not self.max_bytes:
            raise invalid_request(
                "This server keeps no pictures to be fetched: ask for response_format 'b64_json'.",
                "response_format",
                "unsupported_parameter",
            )

    def put(self, data: bytes, format: str) -> str:
        """Keep a picture.

        Returns:
            The token under which :meth:`get` gives the picture.

        Raises:
            OmniError: 413 for a picture that is larger than all pictures may be together.
        """
        if len(data) > self.max_bytes:
            raise self._larger(len(data))
        now = self._clock()
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._files[token] = PictureFile(data, format, now + self.keep_s)
        self.bytes += len(data)
        while self.bytes > self.max_bytes:
            self._drop_oldest()
        self._forget(now)
        return token

    def get(self, token: str) -> PictureFile | None:
        """Return a kept picture; ``None`` for an unknown token and for a picture past its time."""
        self._forget(self._clock())
        return self._files.get(token)

    def _forget(self, now: float) -> None:
        while self._files and next(iter(self._files.values())).until <= now:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, file = self._files.popitem(last=False)
        self.bytes -= len(file.data)

    def _larger(self, size: int) -> OmniError:
        return too_large(
            f"The picture has {size} bytes, and this server keeps at most {self.max_bytes} bytes of pictures: ask for "
            "response_format 'b64_json'.",
            "response_format",
        )
