"""The media engine without a worker around it, and sounds to put into it."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import av
import msgspec
import numpy as np
import numpy.typing as npt
import trio

from omni_actors.connectors.payload import Payload
from omni_actors.media import questions as q
from omni_actors.media.limits import PIECE
from omni_actors.media.wav import wav_header
from omni_actors.media.worker.bridge import JoinMedia
from omni_actors.media.worker.engine import MediaEngine
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import Hello, Query
from omni_actors.protocol.request import MediaChunk, StepProgress, TextDelta, Usage
from omni_actors.worker.engine import Work

GAUGES = ("blobs", "clips", "clips_lent", "streams", "questions", "deliveries", "bytes")


class MediaHarness:
    """An engine, and the outbox that it writes to."""

    def __init__(self, clock: Callable[[], float] | None = None, **options: Any) -> None:
        hello = Hello(version=1, stage="media", replica=0, incarnation=1, engine="", adapter="", options=options)
        self.engine = MediaEngine(hello, clock) if clock else MediaEngine(hello)
        self.info = self.engine.load(lambda text, fraction: None)
        self.replies: dict[int, tuple[Any, ErrorInfo | None]] = {}
        self.asked: list[str] = []
        """What was asked, by name."""
        self.emitted: list[tuple[int, Payload]] = []
        self.finished: dict[int, Usage] = {}
        self.without_credit: set[int] = set()
        self._next = 0

    # The engine's outbox.

    def ready(self, key: int) -> bool:
        return key not in self.without_credit

    def text(self, delta: TextDelta) -> None:
        raise AssertionError("the media engine makes no text")

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        pass

    def media(self, chunk: MediaChunk) -> None:
        raise AssertionError("the media engine shows nothing to clients")

    def progress(self, progress: StepProgress) -> None:
        raise AssertionError("no picture is made")

    def consumed(self, key: int, port: str) -> None:
        raise AssertionError("the media engine has no ports")

    def allocate(self, key: int, kind: str, meta: dict[str, Any], specs: Any) -> Payload:
        raise AssertionError("the media engine writes nothing in place")

    def emit(self, key: int, payload: Payload) -> None:
        self.emitted.append((key, payload))

    def finish(self, key: int, usage: Usage) -> None:
        self.finished[key] = usage

    def fail(self, key: int, error: ErrorInfo) -> None:
        raise AssertionError(f"request {key} failed: {error}")

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        assert query not in self.replies, "one answer per question"
        msgspec.msgpack.encode(value)
        self.replies[query] = (value, error)

    # What a worker's loop does.

    def put(self, question: q.Question) -> int:
        """Hand a question over as it arrives from the wire; its id."""
        return self.put_raw(question.what, question.args())

    def put_raw(self, what: str, args: dict[str, Any]) -> int:
        self._next += 1
        self.asked.append(what)
        args = msgspec.msgpack.decode(msgspec.msgpack.encode(args))
        try:
            self.engine.query(Query(self._next, what, args), self)
        except OmniError as error:
            self.reply(self._next, None, error.info)
        return self._next

    def take(self, id: int) -> Any:
        value, error = self.replies.pop(id)
        if error is not None:
            raise OmniError(error)
        return value

    def ask(self, question: q.Question) -> Any:
        """The answer, stepping the engine until it is there."""
        id = self.put(question)
        while id not in self.replies:
            assert self.engine.step(self)
        return self.take(id)

    async def query(self, what: str, args: dict[str, Any]) -> Any:
        """As a replica in the serving process answers."""
        id = self.put_raw(what, args)
        await trio.lowlevel.checkpoint()
        while id not in self.replies:
            self.engine.step(self)
            await trio.lowlevel.checkpoint()
        return self.take(id)

    # Shorthands.

    def decode(self, data: bytes, owner: str = "o", **hints: Any) -> npt.NDArray[np.float32]:
        """A file's samples, by way of a clip that is delivered."""
        return self.deliver([self.keep(data, owner, **hints).id])[0]

    def keep(self, data: bytes, owner: str = "o", **hints: Any) -> q.MediumInfo:
        return q.parse(self.ask(q.Decode(owner=owner, blob=self.blob(data, owner), **hints)), q.MediumInfo)

    def blob(self, data: bytes, owner: str = "o", param: str | None = None) -> int:
        blob: int = self.ask(q.BlobOpen(owner=owner, param=param))
        for at in range(0, len(data), PIECE):
            self.ask(q.BlobAppend(blob=blob, data=data[at : at + PIECE]))
        return blob

    def deliver(self, media: list[int], key: int = 7) -> list[npt.NDArray[np.float32]]:
        """The samples of clips."""
        return [payload.tensors["samples"] for payload in self.payloads(media, key)]

    def payloads(self, media: list[int], key: int = 7) -> list[Payload]:
        """What a stage gets of a request with these media."""
        self.engine.admit(Work(key, "request", {"clips": media}, routed=True))
        while key not in self.finished:
            assert self.engine.step(self)
        del self.finished[key]
        self.ask(q.Discard(owners=(), clips=tuple(media)))
        bridge = JoinMedia()
        sent = [whole for key_, payload in self.emitted if key_ == key for whole in bridge.feed(payload, False)]
        assert bridge.feed(None, True) == []
        assert [payload.meta["index"] for payload in sent] == list(range(len(media)))
        self.emitted.clear()
        return sent

    def gauges(self) -> dict[str, float]:
        counters = self.engine.counters()
        return {name: counters[name] for name in GAUGES}

    def assert_empty(self) -> None:
        """Nothing is held; what was left in the middle of a call is, until the call's end."""
        for _ in range(10_000):
            if not (self.engine._jobs and all(job.left for job in self.engine._jobs)):
                break
            self.engine.step(self)
        assert self.gauges() == dict.fromkeys(GAUGES, 0)
        assert not self.engine.runnable


def tone(seconds: float, rate: int = 24_000, hz: float = 440.0, channels: int = 1) -> bytes:
    """A sine at half of full scale, s16le, the same in every channel."""
    wave = np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate) * 16_384
    return np.repeat(wave.astype("<i2"), channels).tobytes()


def wav(pcm: bytes, rate: int = 24_000, channels: int = 1) -> bytes:
    return wav_header(rate, channels, len(pcm)) + pcm


def strict_wav(data: bytes) -> tuple[int, int, bytes, int]:
    """(rate, channels, samples, declared size), refusing whatever RIFF does not allow."""
    riff, size, wave = struct.unpack_from("<4sI4s", data)
    fmt, fmt_size, tag, channels, rate, per_second, frame, bits = struct.unpack_from("<4sIHHIIHH", data, 12)
    label, declared = struct.unpack_from("<4sI", data, 36)
    assert (riff, wave, fmt, fmt_size, tag, bits, label) == (b"RIFF", b"WAVE", b"fmt ", 16, 1, 16, b"data")
    assert frame == 2 * channels
    assert per_second == rate * frame
    samples = data[44:]
    assert len(samples) % frame == 0
    if declared != 0xFFFFFFFF:
        assert size == len(data) - 8
        assert declared == len(samples)
    else:
        assert size == 0xFFFFFFFF
    return rate, channels, samples, declared


class WriteOnly:
    """A file that cannot be sought, as a browser's recorder writes."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> int:
        self.data += data
        return len(data)


def container(format: str, codec: str, pcm: bytes, rate: int = 48_000, seekable: bool = True, **options: str) -> bytes:
    """``pcm`` (mono) in some container, written by libav itself."""
    sink = io.BytesIO() if seekable else WriteOnly()
    samples = np.frombuffer(pcm, "<i2")
    with av.open(sink, "w", format=format, container_options=options) as file:
        stream: Any = file.add_stream(codec, rate=rate, layout="mono")
        for at in range(0, len(samples), 960):
            frame = av.AudioFrame.from_ndarray(samples[at : at + 960].reshape(1, -1), "s16", "mono")
            frame.sample_rate = rate
            frame.pts = at
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return sink.getvalue() if isinstance(sink, io.BytesIO) else bytes(sink.data)


def flac(sound: npt.NDArray[np.float32], rate: int) -> bytes:
    """A FLAC file of float sound, [channels, samples]."""
    layouts = {1: "mono", 2: "stereo", 8: "7.1"}
    sink = io.BytesIO()
    with av.open(sink, "w", format="flac") as file:
        stream: Any = file.add_stream("flac", rate=rate, layout=layouts[len(sound)])
        pcm = np.ascontiguousarray((sound * 32_767).astype(np.int16).T)
        frame = av.AudioFrame.from_ndarray(pcm.reshape(1, -1), "s16", layouts[len(sound)])
        frame.sample_rate = rate
        frame.pts = 0
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return sink.getvalue()


def silent_video(frames: int) -> bytes:
    """An MP4 with a picture and no sound."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as file:
        stream: Any = file.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for _ in range(frames):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), "rgb24")))
        file.mux(stream.encode(None))
    return sink.getvalue()


def loudness(samples: npt.NDArray[np.float32]) -> float:
    return float(np.sqrt(np.mean(np.square(samples)))) if len(samples) else 0.0


def snr_db(wanted: npt.NDArray[Any], got: npt.NDArray[Any]) -> float:
    noise = np.asarray(got, np.float64) - wanted
    return float(10 * np.log10(np.sum(np.square(wanted)) / max(np.sum(np.square(noise)), 1e-20)))
