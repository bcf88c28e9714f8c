"""The engines of ``stub-voice``: deterministic, quick to start, and with faults on request.

A prompt (or a text to speak) may hold a fault as a word ``!fault:stage``: ``refuse`` (400), ``fail`` (500), ``crash``
(the worker kills itself on reaching the request), ``stall`` (the request never ends).
"""

from __future__ import annotations

import os
import signal
import time
import zlib
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from omni_actors.connectors.payload import Payload
from omni_actors.models.stub.voice import SAMPLE_RATE
from omni_actors.protocol.errors import invalid_request, stage_failed
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.request import MediaChunk, TextDelta, Usage
from omni_actors.worker.engine import Engine, Outbox, Work

WORDS = ("the", "small", "robot", "walks", "by", "a", "quiet", "sea", "and", "hears", "its", "old", "song", "again")

MAX_WORDS = 16
"""Of an answer whose length is not asked for."""

SAMPLES_PER_WORD = 1200


def word(seed: int, place: int) -> int:
    """Return the word of :data:`WORDS` at a place of an answer."""
    return zlib.crc32(f"{seed}:{place}".encode()) % len(WORDS)


def written(prompt: str, count: int) -> list[int]:
    """Return an answer as indices of words."""
    seed = zlib.crc32(prompt.encode())
    return [word(seed, place) for place in range(count)]


def text_of(words: list[int]) -> str:
    return " ".join(WORDS[it] for it in words)


def sound(said: str, place: int) -> bytes:
    """Return the sound of a word at its place: 50 ms of 16-bit PCM."""
    phase = np.arange(place * SAMPLES_PER_WORD, (place + 1) * SAMPLES_PER_WORD)
    pitch = 200 + zlib.crc32(said.encode()) % 600
    return (8000 * np.sin(2 * np.pi * pitch * phase / SAMPLE_RATE)).astype("<i2").tobytes()


def faults_of(text: str, stage: str) -> set[str]:
    return {it.partition(":")[0][1:] for it in text.split() if it[:1] == "!" and it.endswith(f":{stage}")}


@dataclass(slots=True)
class _Held:
    """The state of one request: the speaker's words so far, how many of the words are ``said``, and whether ``more``
    come. The client has ``told`` words from an earlier attempt; ``heard`` says that the client has output of this
    attempt."""

    work: Work
    faults: set[str] = field(default_factory=set)
    words: list[str] = field(default_factory=list)
    seed: int = 0
    count: int = 0
    said: int = 0
    told: int = 0
    more: bool = False
    heard: bool = False

    @property
    def due(self) -> bool:
        return "stall" not in self.faults and (self.said < self.count or not self.more)


class _Stub(Engine):
    """The common base of both engines: every runnable request produces one word in a step."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._step_s = float(hello.options.get("step_s", 0.0))
        self._held: dict[int, _Held] = {}

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        progress("loading nothing", 0.0)
        time.sleep(float(self.hello.options.get("load_s", 0.0)))
        return {"sample_rate": SAMPLE_RATE, "max_words": MAX_WORDS}

    def abort(self, key: int) -> None:
        self._held.pop(key, None)

    @property
    def runnable(self) -> bool:
        return any(held.due for held in self._held.values())

    def step(self, out: Outbox) -> bool:
        if self._step_s:
            time.sleep(self._step_s)
        ran = False
        for key, held in list(self._held.items()):
            if not held.due or not out.ready(key):
                continue
            ran = True
            if "crash" in held.faults:
                os.kill(os.getpid(), signal.SIGKILL)
            if "fail" in held.faults:
                self.abort(key)
                out.fail(key, stage_failed(self.hello.stage, "asked to fail").info)
                continue
            if held.said < held.count:
                self.say(key, held, out)
            if held.said == held.count and not held.more:
                out.finish(key, self.usage(held))
                self.abort(key)
        return ran

    def counters(self) -> dict[str, float]:
        return {"running": len(self._held)}

    def take(self, work: Work, text: str) -> _Held:
        """Admit a request, with the faults planned for this stage."""
        faults = faults_of(text, self.hello.stage)
        if "refuse" in faults:
            raise invalid_request("asked to refuse", param="prompt")
        held = self._held[work.key] = _Held(work, faults)
        return held

    @abstractmethod
    def say(self, key: int, held: _Held, out: Outbox) -> None:
        """Produce the next word, or the words told already."""

    @abstractmethod
    def usage(self, held: _Held) -> Usage: ...


class Writer(_Stub):
    """Text, from a prompt's text; takes up a prefix."""

    def admit(self, work: Work) -> None:
        prompt, sampling = work.params["prompt"], work.params["sampling"]
        text = prompt.text or " ".join(str(message.get("content")) for message in prompt.messages or ())
        held = self.take(work, text)
        held.seed = zlib.crc32(text.encode())
        held.count = sampling.max_tokens or MAX_WORDS
        if work.prefix is not None and work.prefix.tokens:
            held.told = len(work.prefix.tokens[0])

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        raise invalid_request("takes no input")

    def say(self, key: int, held: _Held, out: Outbox) -> None:
        begin, held.said = held.said, max(held.said + 1, held.told)
        words = [WORDS[word(held.seed, place)] for place in range(begin, held.said)]
        last = held.said == held.count
        if begin >= held.told or last:
            fresh = words[max(0, held.told - begin) :]
            text = "".join(f"{'' if not begin else ' '}{it}" for it in fresh)
            reason, usage = "length" if last else None, None if held.heard else Usage(prompt_tokens=1)
            held.heard = True
            out.text(TextDelta(key, 0, text, [WORDS.index(it) for it in fresh], reason, usage=usage))
        if held.work.routed:
            out.emit(key, Payload("text", {"text": " ".join(words)}))

    def usage(self, held: _Held) -> Usage:
        return Usage(prompt_tokens=1, completion_tokens=held.said)


class Speaker(_Stub):
    """An engine that makes sound from the words of a text or of a writer's output."""

    def admit(self, work: Work) -> None:
        speech = work.params.get("speech")
        text = "" if speech is None else speech.text or ""
        held = self.take(work, text)
        held.more = bool(work.ports)
        held.words = text.split()
        held.count = len(held.words)

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        held = self._held[key]
        if payload is not None:
            held.words += payload.meta["text"].split()
            held.count = len(held.words)
        held.more = held.more and not end
        return True

    def say(self, key: int, held: _Held, out: Outbox) -> None:
        meta = {"sample_rate": SAMPLE_RATE, "channels": 1}
        out.media(MediaChunk(key, "audio", meta, sound(held.words[held.said], held.said)))
        held.said += 1

    def usage(self, held: _Held) -> Usage:
        return Usage(audio_output_s=held.said * SAMPLES_PER_WORD / SAMPLE_RATE)
