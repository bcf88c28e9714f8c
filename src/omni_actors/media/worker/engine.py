"""The engine of the media process, which answers queries in slices and delivers decoded media to the models' stages."""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import msgspec

from omni_actors.connectors.payload import Payload
from omni_actors.media import questions as q
from omni_actors.media.limits import CLIP_RATE, PIECE, read_limits, too_long_to_encode
from omni_actors.media.worker.audio import AUDIO_CODECS
from omni_actors.media.worker.bodies import ChatBody, decode_base64
from omni_actors.media.worker.bridge import cut
from omni_actors.media.worker.decode import Decoding
from omni_actors.media.worker.decoder_thread import DecoderThread, JobAbandoned
from omni_actors.media.worker.encode import check_shape, open_encoder, unavailable, working_formats
from omni_actors.media.worker.held import Blob, Delivery, Job, Made, Medium, Parts, Stream
from omni_actors.media.worker.holdings import Holdings
from omni_actors.media.worker.libav import bound_allocations
from omni_actors.media.worker.tables import Sized, lost
from omni_actors.protocol.errors import OmniError, invalid_request, overloaded, too_large
from omni_actors.protocol.frames import Hello, Query
from omni_actors.protocol.request import Usage
from omni_actors.worker.engine import Engine, Outbox, Work
from omni_actors.worker.isolation import Faults
from omni_actors.worker.memory import trim_heap

_PLURAL = {"audio": "clips", "image": "images", "video": "videos"}

log = logging.getLogger(__name__)


class MediaEngine(Engine):
    """The engine of the media process. :mod:`omni_actors.media.questions` lists the queries.

    Long work is a job, a generator that yields every few milliseconds. A step gives each job turns of one slice, round
    robin, for ``slice_s`` seconds in all, so that a chunk of speech to be encoded never waits for another request's
    half hour of sound to be decoded.

    A request (``Submit`` with section ``clips``, ids in order) borrows its media: clips, images and videos. The media
    stay for another attempt of the request until the orchestrator discards them after the release of the request, or
    until other media need the room, or until the idle time is over. Each medium leaves on the request's edges in
    payloads of kind ``pcm``, ``image`` or ``video``, cut into pieces of a few MiB, one per step;
    :class:`omni_actors.media.worker.bridge.JoinMedia` joins the pieces to one payload for each medium.

    ==========  =======================================  ============================================================
    kind        tensors                                  metadata, beside ``index`` (among all media of the request)
    ==========  =======================================  ============================================================
    ``pcm``     ``samples`` float32 [n]                  ``sample_rate``, ``seconds``, ``length`` (n)
    ``image``   ``pixels`` uint8 [height, width, 3 or 4] ``length`` (height)
    ``video``   ``frames`` uint8 [t, height, width, 3],  ``fps`` of the frames as sampled, ``seconds``, ``length`` (t);
                perhaps ``samples`` float32 [n]          with samples ``sample_rate`` and ``audio_length`` (n)
    ==========  =======================================  ============================================================
    """

    def __init__(self, hello: Hello, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(hello)
        self.limits = read_limits(hello.options)
        ids = itertools.count(q.first_id(hello.replica, hello.incarnation))
        self._held = Holdings(self.limits, ids, clock)
        self._jobs: deque[Job] = deque()
        self._decoder_thread = DecoderThread(clock)
        self._deliveries: dict[int, Delivery] = {}
        self._faults = Faults(hello)
        self._settling: list[int] = []
        """The open ``settle`` questions, which are answered when nothing is held for any client."""
        self._formats: tuple[str, ...] = ()
        self._totals = dict.fromkeys(
            (
                *("clips_decoded", "images_decoded", "videos_decoded", "decode_failures", "decoded_s", "encoded_s"),
                *("clips_delivered", "images_delivered", "videos_delivered", "expired"),
            ),
            0.0,
        )

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        bound_allocations()
        progress("checking audio encoders", None)
        self._formats = working_formats()
        return {"formats": list(self._formats), "decoders": len(AUDIO_CODECS), "clip_rate": CLIP_RATE}

    # Requests: delivery of media.

    def admit(self, work: Work) -> None:
        self._expire()
        try:
            numbers = msgspec.convert(work.params.get("clips"), tuple[int, ...])
        except msgspec.ValidationError:
            raise invalid_request("section 'clips' must list the ids of media", "clips") from None
        media = deque([self._held.lend(number) for number in numbers])
        seconds = sum(medium.audio_seconds for medium in media)
        self._deliveries[work.key] = Delivery(work.request_id, media, seconds)

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        raise invalid_request(f"stage 'media' has no port {port!r}")

    def abort(self, key: int) -> None:
        self._deliveries.pop(key, None)

    @property
    def runnable(self) -> bool:
        return bool(self._jobs or self._deliveries or (self._settling and self._settled))

    def step(self, out: Outbox) -> bool:
        self._expire()
        self._decoder_thread.check(
            self.limits.decode_s
        )  # nobody waits for a call that takes longer than any answer may
        ran = self._deliver(out)
        end = time.perf_counter() + self.limits.slice_s
        while self._jobs:
            ran = True
            self._turn(self._jobs.popleft(), out)
            if time.perf_counter() >= end:
                break
        # What those hold that were left is free in a moment.
        while self._nbytes - self._lingering > self.limits.max_bytes and self._held.lent.evict():
            pass
        while (jobs := self._asked()) and self._nbytes - self._lingering > self.limits.max_bytes:
            self._drop(max(jobs, key=lambda job: job.nbytes), self._full(), out)
        if self._settling and self._settled:
            ran = True
            while self._settling:
                out.reply(self._settling.pop(), None)
        return ran

    def rest(self) -> float | None:
        self._expire()
        trim_heap()
        return self._held.due_s()

    def counters(self) -> dict[str, float]:
        return {
            **self._held.counters(),
            "questions": len(self._jobs),
            "deliveries": len(self._deliveries),
            "bytes": self._nbytes,
            **self._totals,
        }

    def close(self) -> None:
        for job in self._jobs:
            job.work.close()
        self._decoder_thread.close()

    @property
    def _settled(self) -> bool:
        return not (self._jobs or self._deliveries) and self._held.empty

    def _deliver(self, out: Outbox) -> bool:
        ran = False
        for key in [key for key in self._deliveries if out.ready(key)]:
            ran = True
            delivery = self._deliveries[key]
            try:
                if delivery.media:
                    self._send(key, delivery, out)
            except Exception as error:
                del self._deliveries[key]
                out.fail(key, self._faults.explain(error, delivery.request_id))
                continue
            if not delivery.media:
                del self._deliveries[key]
                out.finish(key, Usage(audio_input_s=delivery.audio_seconds))
        return ran

    def _send(self, key: int, delivery: Delivery, out: Outbox) -> None:
        medium = delivery.media[0]
        delivery.pieces = delivery.pieces or cut(medium.payload(delivery.index))
        out.emit(key, delivery.pieces.popleft())
        if not delivery.pieces:
            delivery.media.popleft()
            delivery.index += 1
            self._totals[f"{_PLURAL[medium.modality]}_delivered"] += 1

    # Questions.

    def query(self, query: Query, out: Outbox) -> None:
        """Answer a query of bookkeeping at once, and make a job of any other."""
        self._expire()
        kind = q.QUESTIONS.get(query.what)
        if kind is None:
            raise invalid_request(f"unknown question {query.what!r}")
        try:
            question = q.parse(query.args, kind)
        except msgspec.ValidationError as error:
            raise invalid_request(f"question {query.what!r}: {error}") from None
        match question:
            case q.BlobOpen():
                out.reply(query.id, self._held.blobs.add(question.owner, Blob(question.param)))
            case q.BlobAppend():
                self._append(question)
                out.reply(query.id, None)
            case q.Decode():
                seconds = self._seconds(question.max_seconds)
                decoding = self._decoding(question.modality, question.how, seconds, question.param)
                blob = self._take_blob(question.blob, question.data, question.param)
                self._start(query.id, question.owner, self._decode(question, blob, decoding), blob, decoding)
            case q.ParseChat():
                blob = self._take_blob(question.blob, question.data, None)
                self._start(query.id, question.owner, self._parse_chat(question, blob), blob)
            case q.DecodeParts():
                parts = self._held.bodies.pop(question.body).item
                made = Made()
                self._start(query.id, question.owner, self._decode_parts(question, parts, made), parts, made)
            case q.EncodeOpen():
                out.reply(query.id, self._held.streams.add(question.owner, self._open_stream(question)))
            case q.EncodeFeed() | q.EncodeFinish():
                self._room(len(question.data))
                held = self._held.streams.pop(question.stream)
                ends = isinstance(question, q.EncodeFinish)
                work = self._encode(question.stream, held.owner, held.item, question.data, ends)
                self._start(query.id, held.owner, work, held.item)
            case q.EncodeRead():
                held = self._held.streams.pop(question.stream)
                out.reply(query.id, q.plain(self._encoded(question.stream, held.owner, held.item)))
            case q.Discard():
                self._discard(question, out)
                out.reply(query.id, None)
            case q.Settle():
                self._settling.append(query.id)

    def _start(self, question: int, owner: str, work: Generator[None, None, Any], *holds: Sized) -> None:
        self._jobs.append(Job(question, owner, work, holds))

    def _turn(self, job: Job, out: Outbox) -> None:
        """Run one slice of a job. A failing job fails alone."""
        if job.left:
            self._leave(job, next)
            return
        try:
            next(job.work)
        except StopIteration as end:
            out.reply(job.question, end.value)
        except Exception as error:
            out.reply(job.question, None, self._faults.explain(error, job.owner))
        else:
            self._jobs.append(job)

    def _append(self, question: q.BlobAppend) -> None:
        blob = self._held.blobs.get(question.blob)
        try:
            if blob.nbytes + len(question.data) > self.limits.max_blob_bytes:
                raise too_large(f"The body is larger than {self.limits.max_blob_bytes >> 20} MiB.", blob.param)
            self._room(len(question.data))
        except OmniError:
            self._held.blobs.drop(question.blob)
            raise
        blob.write(question.data)

    def _take_blob(self, number: int | None, data: bytes, param: str | None) -> Blob:
        if number is not None:
            return self._held.blobs.pop(number).item
        self._room(len(data))
        return Blob(param, data)

    def _decode(self, question: q.Decode, blob: Blob, decoding: Decoding) -> Generator[None, None, Any]:
        medium = yield from self._run(decoding, blob, question.content_type, question.filename)
        return q.plain(self._keep(question.owner, medium))

    def _parse_chat(self, question: q.ParseChat, blob: Blob) -> Generator[None, None, Any]:
        body = yield from blob.join()
        chat = ChatBody(body, self.limits, question.modalities, question.clip, question.reference_rate, question.alpha)
        yield
        rendered = chat.render()
        infos: list[q.PartInfo | q.LinkInfo] = []
        brought = []
        for part in chat.parts:
            if part.url is not None:
                infos.append(q.LinkInfo(part.url, part.modality, part.param, part.how))
            else:
                infos.append(q.PartInfo(part.modality))
                brought.append(part)
        held = self._held.bodies.add(question.owner, Parts(brought, len(body))) if brought else None
        return q.plain(q.ChatInfo(rendered, tuple(infos), held))

    def _decode_parts(self, question: q.DecodeParts, parts: Parts, made: Made) -> Generator[None, None, Any]:
        left = self._seconds(question.max_seconds)
        for part in parts.items:
            yield
            file = Blob(part.param)
            most = left
            if part.modality == "audio" and question.longest_s is not None:
                most = min(left, question.longest_s)
            decoding = self._decoding(part.modality, part.how, most, part.param)
            made.growing = (file, decoding)
            yield from decode_base64(part.text, file.write, part.param)
            medium = yield from self._run(decoding, file, part.hint, None)
            made.growing = ()
            made.media.append(medium)
            left -= medium.audio_seconds
        return [q.plain(self._keep(question.owner, medium)) for medium in made.media]

    def _decoding(self, modality: str, how: q.How, max_seconds: float, param: str | None) -> Decoding:
        return Decoding(modality, how, self.limits, max_seconds, self._afford, self._decoder_thread, param)

    def _run(
        self, decoding: Decoding, blob: Blob, content_type: str | None, filename: str | None
    ) -> Generator[None, None, Medium]:
        try:
            medium = yield from decoding.run(blob, content_type, filename)
        except OmniError:
            self._totals["decode_failures"] += 1
            raise
        self._totals[f"{_PLURAL[medium.modality]}_decoded"] += 1
        self._totals["decoded_s"] += medium.audio_seconds
        return medium

    def _keep(self, owner: str, medium: Medium) -> q.MediumInfo:
        """Hold a decoded medium for its request. Raises 429 if there is no room."""
        self._afford(medium.nbytes)  # nothing bounds a decoding that begins and ends within one step
        id = self._held.clips.add(owner, medium)
        return q.MediumInfo(id, medium.modality, medium.seconds, medium.audio_seconds, *medium.size)

    def _open_stream(self, question: q.EncodeOpen) -> Stream:
        check_shape(question.format, question.sample_rate, question.channels)
        if question.format not in self._formats:
            raise unavailable(question.format)
        encoder = open_encoder(question.format, question.sample_rate, question.channels, question.streaming)
        return Stream(encoder, bytes_per_second=2 * question.channels * question.sample_rate)

    def _encode(self, number: int, owner: str, stream: Stream, pcm: bytes, ends: bool) -> Generator[None, None, Any]:
        stream.seconds += len(pcm) / stream.bytes_per_second
        self._totals["encoded_s"] += len(pcm) / stream.bytes_per_second
        if stream.seconds > self.limits.max_seconds:
            raise too_long_to_encode(self.limits)
        yield from stream.encoder.feed(pcm)
        if ends:
            yield from stream.encoder.finish()
            stream.finished = True
        return q.plain(self._encoded(number, owner, stream))

    def _encoded(self, number: int, owner: str, stream: Stream) -> q.Encoded:
        data, more = stream.encoder.take()
        if more or not stream.finished:
            self._held.streams.add(owner, stream, number)
        return q.Encoded(data, more)

    def _discard(self, question: q.Discard, out: Outbox) -> None:
        owners = frozenset(question.owners)
        self._held.discard(owners, question.clips)
        for job in [job for job in self._asked() if job.owner in owners]:
            self._drop(job, lost("operation"), out)

    def _drop(self, job: Job, why: OmniError, out: Outbox) -> None:
        self._jobs.remove(job)
        out.reply(job.question, None, why.info)
        job.left = True
        self._leave(job, lambda work: work.throw(JobAbandoned()))

    def _leave(self, job: Job, turn: Callable[[Generator[None, None, Any]], object]) -> None:
        """Run a slice of a job without an asker."""
        try:
            turn(job.work)
        except (JobAbandoned, StopIteration):
            return
        except Exception:
            log.exception("a question to the media process did not end well")
            return
        self._jobs.append(job)

    def _asked(self) -> list[Job]:
        return [job for job in self._jobs if not job.left]

    # Bounds.

    def _seconds(self, asked: float | None) -> float:
        return self.limits.max_seconds if asked is None else min(asked, self.limits.max_seconds)

    @property
    def _nbytes(self) -> int:
        under_way = [medium for delivery in self._deliveries.values() for medium in delivery.media]
        lent = {id(medium): medium.nbytes for medium in (*self._held.lent.items, *under_way)}
        return self._held.nbytes + sum(job.nbytes for job in self._jobs) + sum(lent.values())

    @property
    def _lingering(self) -> int:
        return sum(job.nbytes for job in self._jobs if job.left)

    def _room(self, more: int) -> None:
        if more > PIECE:
            raise invalid_request(f"a piece may have at most {PIECE} bytes")
        self._afford(more)

    def _afford(self, more: int) -> None:
        while self._nbytes + more > self.limits.max_bytes:
            if not self._held.lent.evict():
                raise self._full()

    def _full(self) -> OmniError:
        return overloaded(f"The media process holds {self.limits.max_bytes >> 20} MiB already.")

    def _expire(self) -> None:
        self._totals["expired"] += self._held.expire()
