"""The cases of the Autobahn WebSocket test suite (its ids, https://github.com/crossbario/autobahn-testsuite), as tables
of what is sent and what is owed. The suite itself is Python 2, and does not even import here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.conformance.rfc6455 import BINARY, CLOSE, CONT, PING, PONG, TEXT, Said, frame

NORMAL = b"\x03\xe8"

KOSME = b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5"
"""The suite's valid text, κόσμε."""


@dataclass(frozen=True)
class Case:
    """``frames`` as they go on the wire. One that does not close itself is closed with 1000 behind them."""

    id: str
    frames: Sequence[bytes]
    messages: Sequence[str | bytes] = ()
    pongs: Sequence[bytes] = ()
    closed: int | None = 1000
    closes: bool = field(default=False)
    """Whether the frames have a close among them, or break the protocol."""

    @property
    def wire(self) -> list[bytes]:
        return [*self.frames] if self.closes else [*self.frames, frame(CLOSE, NORMAL)]

    @property
    def said(self) -> Said:
        return Said(list(self.messages), list(self.pongs), self.closed)


def _broken(id: str, *frames: bytes, messages: Sequence[str | bytes] = (), code: int = 1002) -> Case:
    return Case(id, frames, messages, closed=code, closes=True)


def _closing(id: str, *frames: bytes, code: int | None = 1000, messages: Sequence[str | bytes] = ()) -> Case:
    return Case(id, frames, messages, closed=code, closes=True)


def framing() -> Iterator[Case]:
    """1.*"""
    for number, size in enumerate((0, 125, 126, 127, 128, 65535, 65536, 65536), 1):
        yield Case(f"1.1.{number}", [frame(TEXT, b"*" * size)], ["*" * size])
        yield Case(f"1.2.{number}", [frame(BINARY, b"\xfe" * size)], [b"\xfe" * size])


def pings() -> Iterator[Case]:
    """2.*"""
    yield Case("2.1", [frame(PING)], pongs=[b""])
    yield Case("2.2", [frame(PING, b"Hello, world!")], pongs=[b"Hello, world!"])
    binary = b"\x00\xff\xfe\xfd\xfc\xfb\x00\xff"
    yield Case("2.3", [frame(PING, binary)], pongs=[binary])
    yield Case("2.4", [frame(PING, b"\xfe" * 125)], pongs=[b"\xfe" * 125])
    yield _broken("2.5", frame(PING, b"\xfe" * 126))
    yield Case("2.6", [frame(PING, b"\xfe" * 125)], pongs=[b"\xfe" * 125])
    yield Case("2.7", [frame(PONG)])
    yield Case("2.8", [frame(PONG, b"unsolicited")])
    yield Case("2.9", [frame(PONG, b"unsolicited"), frame(PING, b"ping")], pongs=[b"ping"])
    many = [b"payload-%d" % number for number in range(10)]
    yield Case("2.10", [frame(PING, it) for it in many], pongs=many)
    yield Case("2.11", [frame(PING, it) for it in many], pongs=many)


HELLO = frame(TEXT, b"Hello, world!")


def reserved_bits() -> Iterator[Case]:
    """3.*"""
    yield _broken("3.1", frame(TEXT, b"Hello", rsv=1))
    for bits in (2, 3, 4):
        yield _broken(f"3.{bits}", HELLO, frame(TEXT, b"Hello", rsv=bits), frame(PING), messages=["Hello, world!"])
    yield _broken("3.5", frame(BINARY, b"\x00\xff", rsv=5))
    yield _broken("3.6", frame(PING, b"Hello", rsv=6))
    yield _broken("3.7", frame(CLOSE, NORMAL, rsv=7))


def opcodes() -> Iterator[Case]:
    """4.*"""
    for group, first in ((1, 3), (2, 11)):
        yield _broken(f"4.{group}.1", frame(first))
        yield _broken(f"4.{group}.2", frame(first + 1, b"reserved"))
        for number in (3, 4, 5):
            reserved = frame(first + number - 1, b"reserved" if number > 3 else b"")
            yield _broken(f"4.{group}.{number}", HELLO, reserved, frame(PING), messages=["Hello, world!"])


def fragments() -> Iterator[Case]:
    """5.*"""
    yield _broken("5.1", frame(PING, b"frag", fin=False), frame(CONT, b"ment"))
    yield _broken("5.2", frame(PONG, b"frag", fin=False), frame(CONT, b"ment"))
    two = frame(TEXT, b"frag", fin=False), frame(CONT, b"ment")
    for number in (3, 4, 5):
        yield Case(f"5.{number}", two, ["fragment"])
    for number in (6, 7, 8):
        yield Case(f"5.{number}", [two[0], frame(PING, b"ping"), two[1]], ["fragment"], [b"ping"])
    for number in (9, 10, 11):
        yield _broken(f"5.{number}", frame(CONT, b"nothing to continue"), HELLO)
    for number in (12, 13, 14):
        yield _broken(f"5.{number}", frame(CONT, b"nothing to continue", fin=False), HELLO)
    yield _broken("5.15", *two, frame(CONT, b"nothing", fin=False), HELLO, messages=["fragment"])
    yield _broken("5.16", *[frame(CONT, b"nothing", fin=False), *two] * 2)
    yield _broken("5.17", *[frame(CONT, b"nothing"), *two] * 2)
    yield _broken("5.18", frame(TEXT, b"frag", fin=False), frame(TEXT, b"ment"))
    five = [b"fragment%d" % number for number in range(1, 6)]
    parts = [
        frame(TEXT, five[0], fin=False),
        frame(CONT, five[1], fin=False),
        frame(PING, b"first"),
        frame(CONT, five[2], fin=False),
        frame(CONT, five[3], fin=False),
        frame(PING, b"second"),
        frame(CONT, five[4]),
    ]
    for number in (19, 20):
        yield Case(f"5.{number}", parts, [b"".join(five).decode()], [b"first", b"second"])


_VALID = {
    5: [b"hello$world", b"hello\xc2\xa2world", b"hello\xe2\x82\xacworld", b"hello\xf0\xa4\xad\xa2world", KOSME],
    7: [b"\x00", b"\xc2\x80", b"\xe0\xa0\x80", b"\xf0\x90\x80\x80"],
    9: [b"\x7f", b"\xdf\xbf", b"\xef\xbf\xbf", b"\xf4\x8f\xbf\xbf"],
    11: [b"\xed\x9f\xbf", b"\xee\x80\x80", b"\xef\xbf\xbd", b"\xf4\x8f\xbf\xbf"],
    22: [chr((plane << 16) + last).encode() for plane in range(17) for last in (0xFFFE, 0xFFFF)],
    23: [chr(point).encode() for point in range(0xFFF9, 0x10000)],
}
"""6.5 on: what is UTF-8, noncharacters among it."""

_LEADS = (range(0xC0, 0xE0), range(0xE0, 0xF0), range(0xF0, 0xF8), range(0xF8, 0xFC), range(0xFC, 0xFE))
_CUT = [b"\xc0", b"\xe0\x80", b"\xf0\x80\x80", b"\xf8\x80\x80\x80", b"\xfc\x80\x80\x80\x80"]
_CUT += [b"\xdf", b"\xef\xbf", b"\xf7\xbf\xbf", b"\xfb\xbf\xbf\xbf", b"\xfd\xbf\xbf\xbf\xbf"]
_HIGH, _LOW = (b"\xed\xa0\x80", b"\xed\xad\xbf", b"\xed\xae\x80", b"\xed\xaf\xbf"), (b"\xed\xb0\x80", b"\xed\xbf\xbf")

_INVALID = {
    8: [b"\xf8\x88\x80\x80\x80", b"\xfc\x84\x80\x80\x80\x80"],
    10: [b"\xf7\xbf\xbf\xbf", b"\xfb\xbf\xbf\xbf\xbf", b"\xfd\xbf\xbf\xbf\xbf\xbf"],
    11: [b"\xf4\x90\x80\x80"],
    12: [*((b"\x80\xbf" * 3)[:size] for size in range(1, 7)), b"\xbf", bytes(range(0x80, 0xC0))],
    13: [b"".join(bytes([lead, 0x20]) for lead in leads) for leads in _LEADS],
    14: _CUT,
    15: [b"".join(_CUT)],
    16: [b"\xfe", b"\xff", b"\xfe\xfe\xff\xff"],
    17: [b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"\xf8\x80\x80\x80\xaf", b"\xfc\x80\x80\x80\x80\xaf"],
    18: [b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xf0\x8f\xbf\xbf", b"\xf8\x87\xbf\xbf\xbf", b"\xfc\x83\xbf\xbf\xbf\xbf"],
    19: [b"\xc0\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xf8\x80\x80\x80\x80", b"\xfc\x80\x80\x80\x80\x80"],
    20: [*_HIGH, *_LOW, b"\xed\xbe\x80"],
    21: [high + low for high in _HIGH for low in _LOW],
}
"""What is none: too long, too large, alone, cut short, half of a pair."""


def texts() -> Iterator[Case]:
    """6.*"""
    yield Case("6.1.1", [frame(TEXT)], [""])
    empty = frame(CONT, fin=False)
    yield Case("6.1.2", [frame(TEXT, fin=False), empty, frame(CONT)], [""])
    yield Case("6.1.3", [frame(TEXT, fin=False), frame(CONT, b"middle", fin=False), frame(CONT)], ["middle"])
    text = "Hello-µ@ßöäüàá-UTF-8!!"
    yield Case("6.2.1", [frame(TEXT, text.encode())], [text])
    halves = text[:12].encode(), text[12:].encode()
    yield Case("6.2.2", [frame(TEXT, halves[0], fin=False), frame(CONT, halves[1])], [text])
    yield Case("6.2.3", _by_octet(text.encode()), [text])
    yield Case("6.2.4", _by_octet(KOSME), [KOSME.decode()])
    broken = KOSME + b"\xed\xa0\x80" + b"edited"
    yield _broken("6.3.1", frame(TEXT, broken), code=1007)
    yield _broken("6.3.2", *_by_octet(broken), code=1007)
    late = frame(TEXT, KOSME, fin=False), frame(CONT, b"\xf4\x90\x80\x80", fin=False), frame(CONT, b"edited")
    yield _broken("6.4.1", *late, code=1007)
    bit_by_bit = (
        frame(TEXT, KOSME + b"\xf4", fin=False),
        frame(CONT, b"\x90", fin=False),
        frame(CONT, b"\x80\x80edited"),
    )
    yield _broken("6.4.2", *bit_by_bit, code=1007)
    for number in (3, 4):
        yield _broken(f"6.4.{number}", frame(TEXT, KOSME + b"\xf4\x90\x80\x80edited"), code=1007)
    for group, valid in _VALID.items():
        for number, data in enumerate(valid, 1):
            yield Case(f"6.{group}.{number}", [frame(TEXT, data)], [data.decode()])
    for size in range(1, len(KOSME) + 1):
        data = KOSME[:size]
        if size in (2, 5, 7, 9, 11):
            yield Case(f"6.6.{size}", [frame(TEXT, data)], [data.decode()])
        else:
            yield _broken(f"6.6.{size}", frame(TEXT, data), code=1007)
    for group, invalid in _INVALID.items():
        for number, data in enumerate(invalid, 1):
            yield _broken(f"6.{group}.{number} (invalid)", frame(TEXT, data), code=1007)


def _by_octet(data: bytes) -> list[bytes]:
    frames = [frame(CONT, data[at : at + 1], fin=at == len(data) - 1) for at in range(1, len(data))]
    return [frame(TEXT, data[:1], fin=False), *frames]


def closes() -> Iterator[Case]:
    """7.*"""
    normal = frame(CLOSE, NORMAL)
    yield _closing("7.1.1", HELLO, normal, messages=["Hello, world!"])
    yield _closing("7.1.2", normal, normal)
    yield _closing("7.1.3", normal, frame(PING, b"late"))
    yield _closing("7.1.4", normal, HELLO)
    yield _closing("7.1.5", frame(TEXT, b"frag", fin=False), normal, frame(CONT, b"ment"))
    large = "BAsd7&jh23" * 26_214
    yield _closing("7.1.6", frame(TEXT, large.encode()), HELLO, normal, frame(PING), messages=[large, "Hello, world!"])
    yield _closing("7.3.1", frame(CLOSE), code=None)
    yield _closing("7.3.2", frame(CLOSE, b"a"), code=1002)
    yield _closing("7.3.3", normal)
    yield _closing("7.3.4", frame(CLOSE, NORMAL + b"Hello World!"))
    yield _closing("7.3.5", frame(CLOSE, NORMAL + b"*" * 123))
    yield _closing("7.3.6", frame(CLOSE, NORMAL + b"*" * 124), code=1002)
    yield _closing("7.5.1", frame(CLOSE, NORMAL + KOSME + b"\xed\xa0\x80edited"), code=1007)
    good = (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999)
    for number, code in enumerate(good, 1):
        yield _closing(f"7.7.{number}", frame(CLOSE, code.to_bytes(2)), code=code)
    for number, code in enumerate((0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999), 1):
        yield _closing(f"7.9.{number}", frame(CLOSE, code.to_bytes(2)), code=1002)
    for number, code in enumerate((5000, 65535), 1):
        yield _closing(f"7.13.{number}", frame(CLOSE, code.to_bytes(2)), code=1002)


def large() -> Iterator[Case]:
    """9.* in small, and 10.*: one megabyte where the suite sends sixteen."""
    for number, size in enumerate((64 << 10, 256 << 10, 1 << 20), 1):
        yield Case(f"9.1.{number}", [frame(TEXT, b"*" * size)], ["*" * size])
        yield Case(f"9.2.{number}", [frame(BINARY, b"\xfe" * size)], [b"\xfe" * size])
    whole = 256 << 10
    for number, size in enumerate((64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10), 1):
        yield Case(f"9.3.{number}", _in_fragments(TEXT, whole, size), ["*" * whole])
        yield Case(f"9.4.{number}", _in_fragments(BINARY, whole, size), [b"*" * whole])
    for number, size in enumerate((0, 16, 64, 256, 1024, 4096, 16384), 1):
        yield Case(f"9.7.{number}", [frame(TEXT, b"*" * size)] * 50, ["*" * size] * 50)
        yield Case(f"9.8.{number}", [frame(BINARY, b"*" * size)] * 50, [b"*" * size] * 50)
    yield Case("10.1.1", _in_fragments(TEXT, 65536, 1300), ["*" * 65536])


def _in_fragments(opcode: int, whole: int, size: int) -> list[bytes]:
    places = range(0, whole, size)
    return [frame(CONT if at else opcode, b"*" * min(size, whole - at), fin=at + size >= whole) for at in places]


GROUPS = {
    "1 framing": framing,
    "2 pings and pongs": pings,
    "3 reserved bits": reserved_bits,
    "4 opcodes": opcodes,
    "5 fragmentation": fragments,
    "6 UTF-8": texts,
    "7 closing": closes,
    "9 and 10 sizes": large,
}
