"""The frames between the serving process and a worker, and between two workers.

Every frame is a 4-byte little-endian length, then one msgpack-encoded tagged array. A frame that is unknown, malformed
or over its limit is a protocol error of that channel alone: the worker that sent or received it is replaced. A sender
never sends what is over the limit: the request fails alone.

Identity. ``key`` is a number that the orchestrator draws, ever increasing, for each *attempt* of a request (the first,
and one more each time that it is resumed after a death), so one integer says (request, attempt). A channel belongs to
one incarnation of a replica and a link to one incarnation at each end, and both close with it, so a frame cannot
outlive the incarnation that it belongs to. A receiver drops frames whose key it has retired, and keeps back (within the
edge's credits) those whose key it has not met yet. The end of a link is seen as end-of-file at the other side; no frame
announces it. A stage's failure is told to the orchestrator alone, which aborts the request everywhere: there is one
path of failure.

=========  ==========================  ==============================================================
frame      direction                   meaning
=========  ==========================  ==============================================================
Hello      serving → worker            versioned handshake: the worker's whole configuration
Welcome    worker → serving            the worker speaks this version
Progress   worker → serving            what is being loaded, for a person to read
Ready      worker → serving            loaded; capabilities
Fatal      worker → serving            the worker cannot go on (last frame before it exits)
Wire       serving → worker (+ 1 fd)   one end of a link to another worker; without the descriptor where it is TCP
Submit     serving → worker            take part in a request
Feed       serving → worker            more input for a port of a request (streaming input)
Abort      serving → worker            forget a request
Query      serving → worker            ask for counters (or another named question)
Reply      worker → serving            answer to a Query
Step       worker → serving            what one iteration produced, for all requests at once
Unlinked   worker → serving            a TCP link is broken, and what it leaves unfinished
Stop       serving → worker            finish and exit
Chunk      worker → worker             a payload on an edge of a request (inline, or in a slab)
Ack        worker → worker             chunks consumed: credits back, slab space free
Forget     worker → worker             slabs that the producer has closed: unmap them
Probe      worker → worker             a handle of this end's device memory: can the other one open it?
Reach      worker → worker             whether it can
=========  ==========================  ==============================================================
"""

from __future__ import annotations

from typing import Any

import msgspec

from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.request import MediaChunk, StageDone, StageFailed, TextDelta

PROTOCOL_VERSION = 1

MAX_CONTROL_FRAME = 16 << 20
"""Bytes. Control frames are small, but a Submit may carry a long prompt and a Step a second of audio."""

MAX_PEER_FRAME = 4 << 20
"""Bytes. A chunk over :data:`INLINE_LIMIT` travels in a slab."""

INLINE_LIMIT = 16 << 10
"""Payloads of up to so many bytes travel in the frame itself (measured: a socket is as fast as memory up to here)."""


class EdgeSpec(msgspec.Struct, kw_only=True, frozen=True):
    """An edge as a worker needs it. ``index`` is its place in the plan. ``capacity`` is in chunks per request. ``kind``
    is that of its payloads, ``port_kind`` of what its port takes, which a bridge may make of them. Kind ``media`` (a
    clip, an image or a video) and an empty one stand for any."""

    index: int
    source: str
    target: str
    port: str
    kind: str
    mode: str = "full"
    capacity: int = 64
    bridge: str | None = None
    connector: str = "shared_memory"
    port_kind: str = ""
    connector_class: str = ""
    """Dotted name of the connector's class, where a plug-in brings it."""


ANY_KIND = frozenset({"", "media"})
"""Kinds of edges and ports that payloads of several kinds fit."""


class RankPlace(msgspec.Struct, array_like=True, frozen=True):
    """Where one rank of a replica computes: what its process calls its device, and what it gets as environment."""

    device: str
    environment: dict[str, str]


class Hello(msgspec.Struct, tag="hello", kw_only=True, array_like=True):
    """``engine`` and ``adapter`` are dotted names ``module:attribute``. ``options`` are the stage's own settings."""

    version: int
    stage: str
    replica: int
    incarnation: int
    engine: str
    adapter: str
    model: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    options: dict[str, Any] = {}
    limits: dict[str, int] = {}
    inputs: tuple[EdgeSpec, ...] = ()
    outputs: tuple[EdgeSpec, ...] = ()
    host: str = "127.0.0.1"
    """The address that others call this worker at, if it has inputs by TCP."""
    log_level: str = "INFO"
    platform: str = "omni_actors.platforms.cpu.platform:CpuPlatform"
    """Dotted name of the class of the platform that the worker is on: what an exception of its computation means is the
    platform's to say."""
    platform_options: dict[str, Any] = {}
    """A value for every one of the platform's options."""
    strategy: dict[str, int] = {}
    """The parallel degrees above 1, by axis."""
    ranks: tuple[RankPlace, ...] = ()
    """The ranks of this replica, if it has more than this process, which is the first of them and starts the others;
    empty for an engine that starts its ranks itself."""
    rank: int = 0
    """Which of ``ranks`` the process is that gets this."""
    collectives: str = ""
    """What the ranks compute together by: a backend of torch.distributed."""
    announced: bool = False
    """Whether a plug-in brings the engine by name: then its class must say which contract it was written for."""


class Welcome(msgspec.Struct, tag="welcome", array_like=True):
    version: int
    pid: int


class Progress(msgspec.Struct, tag="progress", array_like=True):
    text: str
    fraction: float | None = None


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """``address``: where the worker is called for links by TCP, if it has inputs by that."""

    info: dict[str, Any]
    address: tuple[str, int] | None = None


class Fatal(msgspec.Struct, tag="fatal", array_like=True):
    error: ErrorInfo


class TcpEnd(msgspec.Struct, array_like=True):
    """One end of a TCP link: the end with an ``address`` opens the connection to there, the other one is called. Each
    proves to the other that it has the ``secret``, which is the link's alone."""

    secret: bytes
    address: tuple[str, int] | None = None

    def __repr__(self) -> str:
        return f"TcpEnd(address={self.address})"


class Wire(msgspec.Struct, tag="wire", array_like=True):
    """``peer`` names the other end (stage#replica@incarnation). The descriptor rides on this frame unless the link is
    ``tcp``. No answer is needed: frames of a channel are handled in order, so a Submit that names the link comes after
    it, and what is sent on a link that is not open yet waits."""

    link: int
    peer: str
    tcp: TcpEnd | None = None


class Prefix(msgspec.Struct, array_like=True, frozen=True):
    """What earlier attempts have reported of this stage, and this one goes on behind: the token ids of each choice, and
    ``data`` of the stage's own making (a talker's whole frames, say): all of :class:`Ledger`'s, one after the other."""

    tokens: tuple[tuple[int, ...], ...]
    data: bytes = b""


class Submit(msgspec.Struct, tag="submit", array_like=True):
    """``ports`` are those that will be fed by edges or by Feed; ``routes`` are pairs (edge index, link) to send the
    stage's output on; ``visible`` says that the client wants this stage's output. ``params`` as in Request.
    ``sources`` are pairs as in ``routes`` for input by TCP: such a link can break while both its ends live.
    ``prefix`` is for a stage that goes on where an earlier attempt was. ``delivered`` are the units of media (for
    audio: samples per channel) that the client has of this stage: those before may be left out.
    ``deadline_s`` is what is left of the request's time, in seconds."""

    key: int
    request_id: str
    params: dict[str, msgspec.Raw]
    ports: tuple[str, ...]
    routes: tuple[tuple[int, int], ...]
    visible: bool
    sources: tuple[tuple[int, int], ...] = ()
    prefix: Prefix | None = None
    delivered: int = 0
    deadline_s: float | None = None


class Feed(msgspec.Struct, tag="feed", array_like=True):
    """A payload of plain metadata (a piece of text, say) for a port; ``end`` says that the port gets no more."""

    key: int
    port: str
    kind: str
    meta: dict[str, Any] | None
    end: bool


class Abort(msgspec.Struct, tag="abort", array_like=True):
    key: int


class Query(msgspec.Struct, tag="query", array_like=True):
    id: int
    what: str
    args: dict[str, Any] = {}


class Reply(msgspec.Struct, tag="reply", array_like=True):
    id: int
    value: Any
    error: ErrorInfo | None = None


class Ledger(msgspec.Struct, array_like=True, frozen=True):
    """What a stage chose in this step, and a new attempt would have to choose again: for :class:`Prefix`. ``index`` is
    the choice. Visible text needs none: its deltas carry their tokens."""

    key: int
    index: int
    tokens: list[int]
    data: bytes = b""


class Step(msgspec.Struct, tag="step", array_like=True):
    """Everything one iteration produced. ``released``: keys of which nothing is left in this worker. ``fed``: pairs
    (key, how many Feeds of it are consumed by now)."""

    texts: list[TextDelta] = []
    media: list[MediaChunk] = []
    done: list[StageDone] = []
    failed: list[StageFailed] = []
    released: list[int] = []
    fed: list[tuple[int, int]] = []
    ledger: list[Ledger] = []


class Unlinked(msgspec.Struct, tag="unlinked", array_like=True):
    """A TCP link could not be opened or is broken. ``keys`` are the requests here whose input on it has not ended. The
    other end may be dead, which the serving process learns otherwise too, or alive."""

    link: int
    keys: tuple[int, ...]


class Stop(msgspec.Struct, tag="stop", array_like=True):
    """The end; whoever sends it has drained first."""


Down = Hello | Wire | Submit | Feed | Abort | Query | Stop
Up = Welcome | Progress | Ready | Fatal | Reply | Step | Unlinked


class TensorMeta(msgspec.Struct, array_like=True, frozen=True):
    """A tensor inside a payload's bytes. ``dtype`` is numpy's name, or ``bfloat16``. C order, little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class SlabRef(msgspec.Struct, array_like=True, frozen=True):
    """Where in the producer's arena the payload lies. ``fd`` says that the slab's descriptor rides on this frame."""

    slab: int
    offset: int
    fd: bool


class DeviceMeta(msgspec.Struct, array_like=True, frozen=True):
    """A tensor that stays in the producer's device memory. ``handle`` opens it, as the platform's transport knows."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    handle: bytes


class Chunk(msgspec.Struct, tag="chunk", array_like=True):
    """``seq`` counts the chunks of this request on this edge from 0. ``kind == ""`` and ``end`` is a bare end. The
    tensors' bytes are in ``data`` or ``slab``; by TCP they follow the frame, and ``slab`` is set where they arrive.
    Those of ``device`` are on the producer's device."""

    key: int
    edge: int
    seq: int
    end: bool
    kind: str
    meta: dict[str, Any]
    tensors: tuple[TensorMeta, ...] = ()
    data: bytes | None = None
    slab: SlabRef | None = None
    device: tuple[DeviceMeta, ...] = ()


class Ack(msgspec.Struct, tag="ack", array_like=True):
    """``upto`` is cumulative: every chunk below it is consumed. A late or repeated Ack is harmless."""

    key: int
    edge: int
    upto: int


class Forget(msgspec.Struct, tag="forget", array_like=True):
    slabs: tuple[int, ...]


class Probe(msgspec.Struct, tag="probe", array_like=True):
    """Sent by each end of a link on which payloads may stay on the device, first of all."""

    handle: bytes


class Reach(msgspec.Struct, tag="reach", array_like=True):
    """``opened``: the other end's probe could be read. ``False`` at any later time: something else could not."""

    opened: bool


Peer = Chunk | Ack | Forget | Probe | Reach
