"""The streaming input of one request, kept so that another attempt can be given the same input."""

from __future__ import annotations

import trio

from omni_actors.protocol.codec import FrameTooLarge, frame
from omni_actors.protocol.errors import invalid_request, too_large
from omni_actors.protocol.frames import Feed

KEPT_BYTES = 1 << 20
"""Bytes of one request's streaming input that are kept for another attempt. A request with more cannot be resumed."""

MAX_UNCONSUMED = 64
"""Pieces of streaming input that may wait in the worker before :meth:`RequestStream.feed` waits."""


class StreamedInput:
    """The pieces of input that a request's caller has fed, with the progress of the present attempt through them."""

    __slots__ = ("_bytes", "consumed", "ended", "kept", "lost_for", "moved", "sent")

    def __init__(self, lost_for: str | None = None) -> None:
        self.sent = 0
        """Pieces that the caller has fed."""
        self.consumed = 0
        """Pieces that the present attempt has consumed."""
        self.moved = trio.lowlevel.ParkingLot()
        """Woken when pieces are consumed, and when the request is over."""
        self.ended: set[str] = set()
        """Modalities whose input has ended."""
        self.kept: list[tuple[str, Feed]] = []
        """Pieces for another attempt, each with the name of its stage."""
        self.lost_for = lost_for
        """The stage whose input was more than :data:`KEPT_BYTES`, so that none is kept any more."""
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether the next piece has to wait until the worker has consumed more."""
        return self.sent - self.consumed >= MAX_UNCONSUMED

    def check_open(self, modality: str, *, end: bool) -> None:
        """Raise the caller's mistake (400) if the input of a modality has ended, and note whether it ends now."""
        if modality in self.ended:
            raise invalid_request(f"Input '{modality}' of this request has ended.", "input")
        if end:
            self.ended.add(modality)

    def keep(self, stage: str, piece: Feed) -> bytes:
        """Return the frame of a piece, and keep the piece for another attempt, while all pieces together are not more
        than :data:`KEPT_BYTES`. Raises 413 for a piece that is too large for a frame."""
        try:
            data = frame(piece)
        except FrameTooLarge as error:
            raise too_large(f"The input is too large: {error}.", "input") from None
        self.sent += 1
        self._bytes += len(data)
        if self._bytes > KEPT_BYTES:
            self.lost_for = stage
            self.kept.clear()
        if self.lost_for is None:
            self.kept.append((stage, piece))
        return data

    def consume(self, count: int) -> None:
        """Note that the present attempt has consumed ``count`` pieces in all."""
        self.consumed = max(self.consumed, count)
        self.moved.unpark_all()

    def begin_again(self) -> None:
        """Note that the present attempt is over: the next one has consumed nothing."""
        self.consumed = 0
