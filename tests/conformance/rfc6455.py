"""RFC 6455 as a client's side of a test needs it: frames to bytes and back, and what a server that echoes owes for a
list of frames. Written from the standard alone, so that it shares no mistake with what it judges."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

Frame = tuple[bool, int, int, bytes]
"""FIN, the three reserved bits, opcode, payload."""

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_KNOWN = (CONT, TEXT, BINARY, CLOSE, PING, PONG)

UPGRADE = (
    b"GET /socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
"""The answer to that key, from section 1.3."""

KEY = b"\x37\xfa\x21\x3d"


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, key: bytes | None = KEY, least: int = 0
) -> bytes:
    """A frame on the wire, masked (unless ``key`` is ``None``). ``least`` makes its length longer than need be: 1 takes
    16 bits, 2 takes 64."""
    size, bit = len(payload), 0 if key is None else 0x80
    head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    if size < 126 and least < 1:
        head += bytes([bit | size])
    elif size < 65536 and least < 2:
        head += bytes([bit | 126]) + struct.pack(">H", size)
    else:
        head += bytes([bit | 127]) + struct.pack(">Q", size)
    return head + payload if key is None else head + key + masked(payload, key)


def masked(payload: bytes, key: bytes) -> bytes:
    size = len(payload)
    stream = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(payload) ^ int.from_bytes(stream)).to_bytes(size)


@dataclass
class Said:
    """What a server said: messages and pongs, each in their order, and how it closed: a code, ``None`` for a close
    without one, 0 for none at all."""

    messages: list[str | bytes] = field(default_factory=list)
    pongs: list[bytes] = field(default_factory=list)
    closed: int | None = 0


def read_frames(data: bytes) -> Said:
    """What a server sent behind the handshake. Raises :class:`AssertionError` for what no server may send; a frame that
    is cut off is not said."""
    said = Said()
    while len(data) >= 2:
        first, size, at = data[0], data[1], 2
        assert first & 0xF0 == 0x80, f"a fragment, or reserved bits: {first:#x}"
        assert size < 128, "a server's frame is not masked"
        if size > 125:
            width = 2 if size == 126 else 8
            size, at = int.from_bytes(data[2 : 2 + width]), 2 + width
            assert len(data) < at or size >= (126 if width == 2 else 65536), "a length longer than need be"
        if len(data) < at + size:
            break
        payload, data = data[at : at + size], data[at + size :]
        assert said.closed == 0, "a frame behind the close"
        match first & 0x0F:
            case 1:
                said.messages.append(payload.decode())
            case 2:
                said.messages.append(payload)
            case 8:
                said.closed = _close_code(payload)
                assert said.closed not in (1, 7), f"a close of {payload!r}"
            case 9 | 10 as opcode:
                assert size <= 125
                if opcode == PONG:
                    said.pongs.append(payload)
            case opcode:
                raise AssertionError(f"opcode {opcode}")
    return said


def expected(frames: Iterable[Frame]) -> Said:
    """What a server that echoes messages owes for frames of a client, each masked and of minimal length. It judges each
    frame when it is whole, text as soon as it cannot be UTF-8 any more."""
    said = Said()
    kind, parts = CONT, b""
    for fin, rsv, opcode, payload in frames:
        control = opcode >= CLOSE
        if rsv or opcode not in _KNOWN or (control and (not fin or len(payload) > 125)):
            return _closing(said, 1002)
        if opcode == PING:
            said.pongs.append(payload)
        elif opcode == CLOSE:
            code = _close_code(payload)
            return _closing(said, {1: 1002, 7: 1007}.get(code or 0, code))
        elif not control:
            if (opcode == CONT) != (kind != CONT):
                return _closing(said, 1002)
            kind, parts = kind or opcode, parts + payload
            if kind == TEXT and not _begins_utf8(parts, fin):
                return _closing(said, 1007)
            if fin:
                said.messages.append(parts.decode() if kind == TEXT else parts)
                kind, parts = CONT, b""
    return said


def _closing(said: Said, code: int | None) -> Said:
    said.closed = code
    return said


def _close_code(payload: bytes) -> int | None:
    """``None`` without one, 1 for what breaks the protocol, 7 for a reason that is no UTF-8."""
    if not payload:
        return None
    code = int.from_bytes(payload[:2])
    if len(payload) >= 2 and not _begins_utf8(payload[2:], True):
        return 7
    known = 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999
    return code if len(payload) >= 2 and known else 1


_HALF_SURROGATES = {bytes([0xED, second]) for second in range(0xA0, 0xC0)}


def _begins_utf8(data: bytes, whole: bool) -> bool:
    """Whether it is UTF-8 (RFC 3629), or may become so: Unicode's table 3-7, byte for byte. Half a surrogate may pass
    until its third byte: so long CPython's decoder waits."""
    at = 0
    while at < len(data):
        first = data[at]
        if first < 0x80:
            at += 1
            continue
        if 0xC2 <= first <= 0xDF:
            more = 1
        elif 0xE0 <= first <= 0xEF:
            more = 2
        elif 0xF0 <= first <= 0xF4:
            more = 3
        else:
            return False
        least, most = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}.get(
            first, (0x80, 0xBF)
        )
        for place in range(1, more + 1):
            if at + place == len(data) or (not whole and data[at:] in _HALF_SURROGATES):
                return not whole
            if not least <= data[at + place] <= most:
                return False
            least, most = 0x80, 0xBF
        at += more + 1
    return True
