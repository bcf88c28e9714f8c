"""A parser of server-sent events."""

from __future__ import annotations


class EventParser:
    """Splits a byte stream into the ``data`` of its events. Comments and other fields are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Take more bytes and return the data of each event that they complete. Lines end in LF, CR LF or CR."""
        text = self._rest + data
        # A CR at the very end may be half of a CR LF: it waits for the next bytes.
        held = b"\r" if text.endswith(b"\r") else b""
        *lines, self._rest = _split(text[: len(text) - len(held)])
        self._rest += held
        events = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
        return events

    @property
    def unfinished(self) -> bool:
        """Whether the stream ended inside an event."""
        return bool(self._rest.strip() or self._data)


def _split(text: bytes) -> list[bytes]:
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
