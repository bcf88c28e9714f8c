"""Frames survive any cutting, and broken ones end their channel with an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_actors.protocol.codec import FrameReader, ProtocolError, frame, peer_reader
from omni_actors.protocol.frames import Ack, Chunk, Peer, Stop

MESSAGES = [
    Ack(1, 2, 3),
    Chunk(1, 0, 0, True, "", {}),
    Chunk(2, 0, 0, False, "x", {"a": 1}, (), b"z" * 5000),
    Ack(9, 9, 9),
]


@given(st.lists(st.integers(1, 700), min_size=1, max_size=50))
def test_any_cutting_gives_the_same_messages(cuts: list[int]) -> None:
    data = b"".join(map(frame, MESSAGES))
    reader = peer_reader()
    got: list[Peer] = []
    position = 0
    while position < len(data):
        for cut in cuts:
            got += reader.feed(data[position : position + cut])
            position += cut
    assert got == MESSAGES


@pytest.mark.parametrize(
    "data",
    [
        (1 << 31).to_bytes(4, "little"),
        (3).to_bytes(4, "little") + b"\xc1\xc1\xc1",
        frame(Stop()),
        (0).to_bytes(4, "little"),
    ],
    ids=["oversize", "garbage", "a frame of the other direction", "empty"],
)
def test_a_malformed_frame_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        peer_reader().feed(data)


def test_the_limit_is_the_readers_own() -> None:
    reader: FrameReader[Peer] = FrameReader(Peer, 10)
    with pytest.raises(ProtocolError, match="limit"):
        reader.feed(frame(MESSAGES[2]))
