"""The frames between the serving process and a worker, and between two workers.

Every frame is a 4-byte little-endian length, then one msgpack-encoded tagged array. A frame that is unknown, malformed
or over its limit is a protocol error of that channel alone: the worker at the channel is replaced. A sender never sends
a frame over the limit: the request fails alone.

Identity. ``key`` is a number that the orchestrator draws, ever increasing, for each *attempt* of a request (the first,
and one more for each resume after a death), so one integer says (request, attempt). A channel belongs to one
incarnation of a replica and a link to one incarnation at each end. Both close with their incarnation, so a frame cannot
outlive its incarnation. A receiver drops frames with a retired key, and keeps back (within the edge's credits) frames
with a key that is not known yet. The end of a link is seen as end-of-file at the other side; no frame announces it. A
stage's failure is reported to the orchestrator alone, which aborts the request everywhere: there is one path of
failure.

=========  ==========================  ==============================================================
frame      direction                   meaning
=========  ==========================  ==============================================================
Hello      serving → worker            versioned handshake: the worker's whole configuration
Welcome    worker → serving            the worker speaks this version
Progress   worker → serving            the present step of loading, for a person to read
Ready      worker → serving            loaded; capabilities
Fatal      worker → serving            the worker cannot go on (last frame before exit)
Wire       serving → worker (+ 1 fd)   one end of a link to another worker; without the descriptor for TCP
Submit     serving → worker            take part in a request
Feed       serving → worker            more input for a port of a request (streaming input)
Abort      serving → worker            forget a request
Query      serving → worker            ask for counters (or another named query)
Reply      worker → serving            answer to a Query
Step       worker → serving            the output of one iteration, for all requests at once
Unlinked   worker → serving            a TCP link is broken, with the requests left unfinished
Stop       serving → worker            finish and exit
Chunk      worker → worker             a payload on an edge of a request (inline, or in a slab)
Ack        worker → worker             chunks consumed: credits back, slab space free
Forget     worker → worker             slabs that the producer has closed: unmap them
Probe      worker → worker             a handle of this end's device memory: can the other end open it?
Reach      worker → worker             whether the other end's probe can be opened
=========  ==========================  ==============================================================
"""

from __future__ import annotations

from typing import Any

import msgspec

from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.request import MediaChunk, StageDone, StageFailed, StepProgress, TextDelta

PROTOCOL_VERSION = 1

MAX_CONTROL_FRAME = 16 << 20
"""Limit in bytes. Control frames are small, but a Submit may carry a long prompt and a Step a second of audio."""

MAX_PEER_FRAME = 4 << 20
"""Limit in bytes. A chunk over :data:`INLINE_LIMIT` travels in a slab."""

INLINE_LIMIT = 16 << 10
"""Payloads of up to this number of bytes travel in the frame itself (measured: a socket is as fast as shared memory up
to here)."""


class EdgeSpec(msgspec.Struct, kw_only=True, frozen=True):
    """An edge in the form for a worker.

    ``index`` is the edge's place in the plan. ``capacity`` is in chunks per request. ``kind`` is the kind of the
    payloads, ``port_kind`` the kind that the port takes, into which a bridge may turn the payloads. Kind ``media`` (a
    clip, an image or a video) and an empty kind stand for any.
    """

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
    """Dotted name of the connector's class, for the connector of a plug-in."""


ANY_KIND = frozenset({"", "media"})
"""Kinds of edges and ports that take payloads of several kinds."""


class RankPlace(msgspec.Struct, array_like=True, frozen=True):
    """The place of one rank of a replica: the device's name in the rank's process, and the process's environment
    variables."""

    device: str
    environment: dict[str, str]


class Hello(msgspec.Struct, tag="hello", kw_only=True, array_like=True):
    """The whole configuration of a worker. ``engine`` and ``adapter`` are dotted names ``module:attribute``.
    ``options`` are the stage's own settings."""

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
    """The address at which other workers call this worker, if it has inputs by TCP."""
    log_level: str = "INFO"
    platform: str = "omni_actors.platforms.cpu.platform:CpuPlatform"
    """Dotted name of the class of the worker's platform. The platform also says what an exception of a computation
    means."""
    platform_options: dict[str, Any] = {}
    """A value for every option of the platform."""
    strategy: dict[str, int] = {}
    """The parallel degrees above 1, by axis."""
    ranks: tuple[RankPlace, ...] = ()
    """The ranks of a replica with several processes: the first is the worker itself and starts the others. Empty for an
    engine that starts its ranks itself."""
    rank: int = 0
    """The index in ``ranks`` of the process that gets this frame."""
    collectives: str = ""
    """The backend of torch.distributed for the ranks' collective operations."""
    announced: bool = False
    """Whether a plug-in brings the engine by name: then the engine's class must state the version of its contract."""


class Welcome(msgspec.Struct, tag="welcome", array_like=True):
    """The worker speaks protocol ``version`` and has process id ``pid``."""

    version: int
    pid: int


class Progress(msgspec.Struct, tag="progress", array_like=True):
    """The present step of loading, and the part that is done (0 to 1), if known."""

    text: str
    fraction: float | None = None


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """The worker has loaded. ``info`` are facts of the engine; ``address`` is where the worker is called for links by
    TCP, if it has inputs by TCP."""

    info: dict[str, Any]
    address: tuple[str, int] | None = None


class Fatal(msgspec.Struct, tag="fatal", array_like=True):
    """The worker cannot go on, for this reason."""

    error: ErrorInfo


class TcpEnd(msgspec.Struct, array_like=True):
    """One end of a TCP link: the end with an ``address`` opens the connection to that address, the other end is called.
    Each end proves to the other the knowledge of the link's own ``secret``."""

    secret: bytes
    address: tuple[str, int] | None = None

    def __repr__(self) -> str:
        return f"TcpEnd(address={self.address})"


class Wire(msgspec.Struct, tag="wire", array_like=True):
    """One end of a link. ``peer`` names the other end (stage#replica@incarnation).

    The descriptor rides on this frame unless the link is ``tcp``. No answer is needed: frames of a channel are handled
    in order, so a Submit that names the link comes later, and output on a link that is not open yet waits.
    """

    link: int
    peer: str
    tcp: TcpEnd | None = None


class Prefix(msgspec.Struct, array_like=True, frozen=True):
    """The output of this stage that earlier attempts have reported: the new attempt goes on behind it.

    ``tokens`` are the token ids of each choice, and ``data`` is of the stage's own making (a talker's whole frames,
    say): the contents of all :class:`Ledger` records, one after the other.
    """

    tokens: tuple[tuple[int, ...], ...]
    data: bytes = b""


class Submit(msgspec.Struct, tag="submit", array_like=True):
    """A request for the worker.

    ``ports`` will be fed by edges or by Feed; ``routes`` are pairs (edge index, link) for the stage's output;
    ``visible`` says that the client wants this stage's output. ``params`` as in Request. ``sources`` are pairs as in
    ``routes`` for input by TCP: such a link can break while both its ends live. ``prefix`` is for a stage that
    continues an earlier attempt. ``delivered`` are the units of media (for audio: samples per channel) of this stage
    that the client already has: the stage may leave them out. ``deadline_s`` is the rest of the request's time, in
    seconds; ``priority`` that of the request, the lower the earlier.
    """

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
    priority: int = 0


class Feed(msgspec.Struct, tag="feed", array_like=True):
    """A payload of plain metadata (a piece of text, say) for a port; ``end`` says that the port gets no more."""

    key: int
    port: str
    kind: str
    meta: dict[str, Any] | None
    end: bool


class Abort(msgspec.Struct, tag="abort", array_like=True):
    """Forget the request with this key."""

    key: int


class Query(msgspec.Struct, tag="query", array_like=True):
    """A query by name, with arguments; ``id`` is repeated in the Reply."""

    id: int
    what: str
    args: dict[str, Any] = {}


class Reply(msgspec.Struct, tag="reply", array_like=True):
    """The answer to the query with this ``id``: a value or an error."""

    id: int
    value: Any
    error: ErrorInfo | None = None


class Ledger(msgspec.Struct, array_like=True, frozen=True):
    """The choices of a stage in this step, for the :class:`Prefix` of a new attempt. ``index`` is the choice. Visible
    text needs no record: its deltas carry their tokens."""

    key: int
    index: int
    tokens: list[int]
    data: bytes = b""


class Step(msgspec.Struct, tag="step", array_like=True):
    """The output of one iteration. ``released``: keys of which nothing is left in this worker. ``fed``: pairs (key,
    number of Feeds consumed so far)."""

    texts: list[TextDelta] = []
    media: list[MediaChunk] = []
    done: list[StageDone] = []
    failed: list[StageFailed] = []
    released: list[int] = []
    fed: list[tuple[int, int]] = []
    ledger: list[Ledger] = []
    progress: list[StepProgress] = []


class Unlinked(msgspec.Struct, tag="unlinked", array_like=True):
    """A TCP link could not be opened or is broken. ``keys`` are the requests here whose input on the link has not
    ended. The other end may be alive, or dead: the serving process learns of a death separately."""

    link: int
    keys: tuple[int, ...]


class Stop(msgspec.Struct, tag="stop", array_like=True):
    """The end of the worker; the sender has drained the worker first."""


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
    """The place of a payload in the producer's arena. ``fd`` says that the slab's descriptor rides on this frame."""

    slab: int
    offset: int
    fd: bool


class DeviceMeta(msgspec.Struct, array_like=True, frozen=True):
    """A tensor in the producer's device memory. The platform's transport opens ``handle``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    handle: bytes


class Chunk(msgspec.Struct, tag="chunk", array_like=True):
    """A payload on an edge of a request.

    ``seq`` counts the chunks of this request on this edge from 0. ``kind == ""`` and ``end`` is a bare end. The
    tensors' bytes are in ``data`` or ``slab``; by TCP the bytes follow the frame, and the receiver sets ``slab``. The
    tensors of ``device`` are on the producer's device.
    """

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
    """Chunks are consumed. ``upto`` is cumulative: every chunk below ``upto`` is consumed. A late or repeated Ack is
    harmless."""

    key: int
    edge: int
    upto: int


class Forget(msgspec.Struct, tag="forget", array_like=True):
    """Slabs that the producer has closed."""

    slabs: tuple[int, ...]


class Probe(msgspec.Struct, tag="probe", array_like=True):
    """A handle of the sender's device memory: the first frame of each end of a link on which payloads may stay on the
    device."""

    handle: bytes


class Reach(msgspec.Struct, tag="reach", array_like=True):
    """Whether the other end's probe could be opened; ``False`` at any later time says that another handle could not."""

    opened: bool


Peer = Chunk | Ack | Forget | Probe | Reach
