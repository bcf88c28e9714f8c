"""The speech recognition stage turns clips into text.

Each payload on port ``audio`` is one clip. A clip of up to 30 s is decoded in a batch with clips of other requests; a
longer clip window by window, each window in a step of its own, and text leaves after each window. Long pauses are left
out of clips decoded in windows or with times (:mod:`~omni_actors.models.omni_demo.condensed`).

For the client: text deltas whose ``index`` is the clip's place. ``meta`` has ``language``, ``duration`` (of the clip,
seconds) and, when timestamps are asked for, ``segments`` (of the delta's text; times from the clip's begin).
The last delta of a clip has ``finish_reason``: ``length`` where the section's ``max_tokens`` has cut the clip's
transcript, else ``stop``. For other stages: one payload per clip, kind ``text``, with ``text`` and
``index`` in its metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import soxr
import torch

from omni_actors.connectors.payload import Payload
from omni_actors.models.omni_demo.condensed import Condensed, condense, drawn_to_voice
from omni_actors.models.omni_demo.voice_activity import VoiceActivity, VoiceTrack
from omni_actors.models.omni_demo.whisper import RATE, WINDOW, WINDOW_S, Samples, Segment, Transcript, Whisper
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.languages import chosen_language
from omni_actors.protocol.params import Transcription
from omni_actors.protocol.request import TextDelta, Usage
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot.adapter import GenerationAdapter
from omni_actors.worker.engines.oneshot.outputs import Piece, Result

LANGUAGE = "en"


@dataclass(slots=True)
class Listening:
    """The state of one request. ``clips`` counts the clips received so far."""

    work: Work
    asked: Transcription
    prompt: tuple[int, ...]
    clips: int = 0


@dataclass(frozen=True, slots=True)
class Clip:
    """An item: a clip as float32 [n] at 16 kHz. ``part`` is the decoded part of a short clip with timestamps."""

    request: Listening
    index: int
    samples: Samples
    track: VoiceTrack
    voiced: bool = True
    part: Condensed | None = None

    @property
    def seconds(self) -> float:
        return len(self.samples) / RATE

    @property
    def long(self) -> bool:
        return len(self.samples) > WINDOW

    @property
    def heard(self) -> Samples:
        """The decoded part of a short clip."""
        return self.samples if self.part is None else self.part.cut(self.samples)

    def timed(self, transcript: Transcript, part: Condensed, after: float = 0.0) -> list[Segment]:
        """The segments of a part of this clip, with times of the clip, none before ``after``."""
        placed = [
            replace(it, start=part.place(it.start) / RATE, end=part.place(it.end, ends=True) / RATE)
            for it in transcript.segments
        ]
        return drawn_to_voice(placed, self.track, after)


class Recogniser(GenerationAdapter[Listening, Clip]):
    """Whisper tiny.en behind a voice activity gate: what holds no voice gives no text."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._max_seconds = float(hello.options.get("max_seconds", 1800.0))

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        assert self.hello.model is not None
        folder, options = Path(self.hello.model), self.hello.options
        torch.set_num_threads(self.hello.threads)
        progress("loading the recogniser", 0.0)
        max_new_tokens = int(options.get("max_new_tokens", 224))
        self._whisper = Whisper(str(folder), max_new_tokens, float(options.get("padding_s", 5.0)))
        vad = folder / options.get("vad", "../vad")
        self._activity = VoiceActivity(vad, float(options.get("speech_threshold", 0.3)))
        progress("warming up", 0.8)
        self._whisper.warm_up()
        return {"sample_rate": RATE, "languages": [LANGUAGE], "tasks": ["transcribe"], "timestamps": ["segment"]}

    def open(self, work: Work) -> tuple[Listening, Sequence[Clip]]:
        asked: Transcription = work.params.get("transcription") or Transcription()
        _check(asked)
        return Listening(work, asked, self._whisper.prompt_tokens(asked.prompt)), ()

    def feed(self, state: Listening, port: str, payload: Payload | None, end: bool) -> Sequence[Clip]:
        if payload is None:
            return ()
        samples = payload.tensors["samples"]
        rate = payload.meta["sample_rate"]
        if len(samples) > self._max_seconds * rate:
            message = f"The audio is {len(samples) / rate:.0f} s long; at most {self._max_seconds:.0f} s are allowed."
            raise invalid_request(message, param="file")
        if rate != RATE:
            samples = soxr.resample(samples, rate, RATE)
        samples = np.asarray(samples, np.float32)
        clip = Clip(state, state.clips, samples, self._activity.track(samples))
        if not clip.long and state.asked.timestamps != "none":
            part = condense(clip.track, len(samples), 0)
            clip = replace(clip, voiced=part is not None and bool(part.ranges), part=part)
        elif not clip.long:
            clip = replace(clip, voiced=self._activity.speech_in(samples))
        state.clips += 1
        return (clip,)

    def batch_key(self, item: Clip) -> Hashable:
        if item.long or not item.voiced:
            return id(item)
        asked = item.request.asked
        timestamps, prompt = asked.timestamps != "none", item.request.prompt
        return self._whisper.window_s(item.heard, prompt, timestamps), timestamps, asked.temperature, prompt

    def run(self, items: Sequence[Clip]) -> Sequence[Result | OmniError]:
        first = items[0]
        if not first.voiced:
            return [self._whole(first, Transcript("", [], WINDOW_S))]
        if first.long:
            return [Result(self._windows(first), Usage(audio_input_s=first.seconds))]
        asked = first.request.asked
        windows = [item.heard for item in items]
        limits = [item.request.asked.max_tokens for item in items]
        timestamps = asked.timestamps != "none"
        found = self._whisper.transcribe(windows, first.request.prompt, asked.temperature, timestamps, limits)
        return [self._whole(item, transcript) for item, transcript in zip(items, found, strict=True)]

    def _whole(self, clip: Clip, transcript: Transcript) -> Result:
        """A clip of one window."""
        text = transcript.text.strip()
        segments = (
            [] if clip.part is None else _segments(transcript, clip.timed(transcript, clip.part), 0.0, clip.seconds)
        )
        usage = Usage(audio_input_s=clip.seconds, completion_tokens=transcript.tokens)
        return Result([_piece(clip, text, text, segments, _reason(transcript))], usage)

    def _windows(self, clip: Clip) -> Iterator[Piece]:
        """A long clip, a window at a time: each begins where the last complete segment of the one before ended."""
        asked = clip.request.asked
        left = asked.max_tokens
        said, ended_s = "", 0.0
        start, total = 0, len(clip.samples)
        while True:
            part = condense(clip.track, total, start)
            if part is None:
                yield Piece()  # a long silence is searched in several steps
                continue
            offset = (part.ranges[0][0] if part.ranges else start) / RATE
            transcript = Transcript("", [], WINDOW_S)
            if part.ranges:
                prompt = () if said else clip.request.prompt
                window = part.cut(clip.samples)
                transcript = self._whisper.transcribe([window], prompt, asked.temperature, True, [left])[0]
                left = None if left is None else left - transcript.kept
            start = max(start + 1, part.place(transcript.advance_s))
            # What the window says behind its last complete segment is said again by the next one, if there is one.
            ended = start >= total or transcript.cut
            text = "".join(segment.text for segment in transcript.segments)
            text = text.strip() if not said else text.rstrip()
            said += text
            piece = Piece()
            if text or ended:
                timed = clip.timed(transcript, part, ended_s)
                ended_s = timed[-1].end if timed else ended_s
                segments = _segments(transcript, timed, offset, clip.seconds)
                piece = _piece(clip, text, said if ended else None, segments, _reason(transcript) if ended else None)
            yield replace(piece, usage=Usage(completion_tokens=transcript.kept))
            if ended:
                return


def _reason(transcript: Transcript) -> str:
    """Return the finish reason of a clip that ends with ``transcript``."""
    return "length" if transcript.cut else "stop"


def _piece(
    clip: Clip, text: str, whole: str | None, segments: list[dict[str, Any]], finish_reason: str | None
) -> Piece:
    """A delta for the client, and with the clip's ``whole`` text a payload for the stages behind."""
    work = clip.request.work
    delta = None
    if work.visible:
        meta: dict[str, Any] = {"language": LANGUAGE, "duration": clip.seconds}
        if clip.request.asked.timestamps != "none":
            meta["segments"] = segments
        delta = TextDelta(work.key, clip.index, text, [], finish_reason, None, meta)
    payload = None
    if work.routed and whole is not None:
        payload = Payload("text", {"text": whole, "index": clip.index})
    return Piece(payload=payload, text=delta)


def _segments(transcript: Transcript, timed: Sequence[Segment], offset: float, seconds: float) -> list[dict[str, Any]]:
    """Return segments in OpenAI's verbose form, without ``id`` (ids count over the whole answer).

    ``timed`` are the transcript's segments, with times in the clip; ``offset`` is the begin of the window in seconds.
    """

    def one(segment: Segment) -> dict[str, Any]:
        return {
            "seek": round(offset * 100),
            "start": round(min(segment.start, seconds), 2),
            "end": round(min(segment.end, seconds), 2),
            "text": segment.text,
            "tokens": segment.tokens,
            "temperature": transcript.temperature,
            "avg_logprob": transcript.avg_logprob,
            "compression_ratio": transcript.compression_ratio,
            "no_speech_prob": transcript.no_speech_prob,
        }

    return [one(segment) for segment in timed]


def _check(asked: Transcription) -> None:
    """Raise a 400 for a request beyond the model's abilities."""
    chosen_language(asked.language, (LANGUAGE,))
    if asked.task != "transcribe":
        raise invalid_request("This model understands English only: it has nothing to translate.", param="task")
    if asked.timestamps not in ("none", "segment"):
        raise invalid_request("This model gives times of segments, not of words.", param="timestamp_granularities")
    if not 0.0 <= asked.temperature <= 1.0:
        raise invalid_request("temperature must be between 0 and 1.", param="temperature")
