"""Whisper's decoding: windows of 30 s in; text, segments and confidences out. Greedy unless a temperature is given."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizer
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from omni_actors.models.common.chat import Chat
from omni_actors.worker.checks import WarmUpError

Samples = np.ndarray[Any, np.dtype[np.float32]]

RATE = 16_000
WINDOW_S = 30.0
WINDOW = int(RATE * WINDOW_S)
STAMP_S = 0.02
FRAMES_PER_S = 50
"""Of the encoder, whose two convolutions halve the extractor's hundred."""

BUCKET_S = 2.0
"""Clips whose windows are equally long after rounding up to this can be decoded together."""

RETRY_TEMPERATURES = (0.4, 0.8)
"""Tried in turn, each with its own fixed seed, when the greedy text looks like a loop or a guess."""

LOOP_COMPRESSION = 2.4
"""Text that compresses better than this repeats itself."""

GUESS_LOGPROB = -1.0
"""Mean log-probability of a token below which the text is a guess."""

NO_SPEECH = 0.6


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of speech, ``start`` and ``end`` in seconds from the window's begin; ``text`` begins with its space."""

    start: float
    end: float
    text: str
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Transcript:
    """The transcript of one window. ``advance_s`` is the distance to the begin of the next window (at most 30 s).

    ``tokens`` counts the tokens of ``text``, ``kept`` the tokens not repeated by the next window. ``cut`` says that the
    transcript has reached the number of tokens asked for, and ends there.
    """

    text: str
    segments: list[Segment]
    advance_s: float
    tokens: int = 0
    kept: int = 0
    cut: bool = False
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 0.0
    no_speech_prob: float = 0.0


@dataclass(frozen=True, slots=True)
class _Row:
    """A decoded row: tokens without the prompt and the end, and the sum of log-probabilities (with the end's). ``cut``
    says that the row reached the limit asked for."""

    tokens: list[int]
    logprob: float
    no_speech: float
    cut: bool


class Whisper:
    """An English-only Whisper (transformers' folder) in float32 on the CPU's own thread pool.

    Whisper was trained on windows of 30 s, padded with silence. For words alone most of the padding can be left out,
    and the encoder's work is proportional to the clip's length. ``padding_s`` is the padding kept, in seconds; with 30
    all of it. Less padding makes timestamps and prompts less exact, so a clip with either is padded to 30 s.
    """

    def __init__(self, folder: str, max_new_tokens: int, padding_s: float) -> None:
        self.model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = WhisperTokenizer.from_pretrained(folder)
        self._chat = Chat(self.tokenizer)
        self._extractor = WhisperFeatureExtractor.from_pretrained(folder)
        generation = self.model.generation_config
        self._start = generation.decoder_start_token_id
        self._end = generation.eos_token_id
        self._no_timestamps = generation.no_timestamps_token_id
        self._first_stamp = generation.no_timestamps_token_id + 1
        self._previous = generation.prev_sot_token_id
        self._no_speech = self.tokenizer.convert_tokens_to_ids("<|nocaptions|>")
        self._suppressed = torch.tensor(generation.suppress_tokens)
        self._suppressed_first = torch.tensor(generation.begin_suppress_tokens)
        self._context = self.model.config.max_target_positions
        self._max_new_tokens = max_new_tokens
        self._padding_s = padding_s

    def window_s(self, samples: Samples, prompt: tuple[int, ...], timestamps: bool) -> float:
        """Return the length of a clip's window in seconds: clips with windows of equal length can share a batch."""
        if prompt or timestamps:
            return WINDOW_S
        return min(WINDOW_S, BUCKET_S * math.ceil((len(samples) / RATE + self._padding_s) / BUCKET_S))

    def prompt_tokens(self, prompt: str | None) -> tuple[int, ...]:
        """The tokens of what was said before, as far back as the model can be told."""
        if not prompt or not prompt.strip():
            return ()
        most = self._context // 2 - 1
        # No token is longer than a few words: what lies further back is not read, so that a long prompt costs nobody.
        tokens = self._chat.encode_words(" " + prompt[-32 * most :].strip())
        return tuple(tokens[-most:])

    def warm_up(self) -> None:
        """Decode a second of silence. Raises :class:`WarmUpError` when the model computes NaN, with which decoding
        would never end."""
        silence = np.zeros(RATE, np.float32)
        with torch.inference_mode():
            features = self._extractor([silence], sampling_rate=RATE, return_tensors="pt").input_features
            encoded = self._encode(features, self.window_s(silence, (), False))
            first = self.model.model.decoder(input_ids=torch.tensor([[self._start]]), encoder_hidden_states=encoded)
            if not self.model.proj_out(first.last_hidden_state).isfinite().all():
                raise WarmUpError("logits")
        self.transcribe([silence], (), 0.0, False, [None])

    def transcribe(
        self,
        windows: Sequence[Samples],
        prompt: tuple[int, ...],
        temperature: float,
        timestamps: bool,
        limits: Sequence[int | None],
    ) -> list[Transcript]:
        """Transcribe clips of at most 30 s (float32 [n], 16 kHz) as one batch, in the longest one's window.

        When the greedy text repeats itself or is a guess, the clip is heard again by itself: in a window of 30 s, then
        at higher temperatures with fixed seeds. With a ``temperature`` nothing is tried again.

        ``limits`` holds, for each clip, the most tokens to decode (at least 1), or ``None``; timestamps are tokens too.
        A clip's own limit changes nothing for the others of the batch.
        """
        with torch.inference_mode():
            features = self._extractor(list(windows), sampling_rate=RATE, return_tensors="pt").input_features
            heard_s = max(self.window_s(window, prompt, timestamps) for window in windows)
            rows = self._decode(self._encode(features, heard_s), prompt, temperature, timestamps, limits)
            found = []
            for index, (row, window, limit) in enumerate(zip(rows, windows, limits, strict=True)):
                seconds = len(window) / RATE
                best = self._read(row, seconds, temperature, timestamps)
                if temperature == 0.0 and _doubtful(best):
                    best = self._again(features[index : index + 1], prompt, seconds, timestamps, heard_s, limit)
                found.append(best)
        return found

    def _again(
        self,
        features: torch.Tensor,
        prompt: tuple[int, ...],
        seconds: float,
        timestamps: bool,
        heard_s: float,
        limit: int | None,
    ) -> Transcript:
        encoded = self._encode(features, WINDOW_S)
        for temperature in RETRY_TEMPERATURES if heard_s == WINDOW_S else (0.0, *RETRY_TEMPERATURES):
            row = self._decode(encoded, prompt, temperature, timestamps, [limit])[0]
            found = self._read(row, seconds, temperature, timestamps)
            if not _doubtful(found):
                break
        return found

    def _encode(self, features: torch.Tensor, window_s: float) -> torch.Tensor:
        """The first ``window_s`` seconds of ``features`` [rows, mels, 3000] through the encoder."""
        encoder = self.model.model.encoder
        if window_s == WINDOW_S:
            encoded: torch.Tensor = encoder(features).last_hidden_state
            return encoded
        # The model's own forward takes 30 s and nothing else.
        frames = round(window_s * FRAMES_PER_S)
        hidden = torch.nn.functional.gelu(encoder.conv1(features[:, :, : 2 * frames]))
        hidden = torch.nn.functional.gelu(encoder.conv2(hidden)).transpose(1, 2)
        hidden = hidden + encoder.embed_positions.weight[:frames]
        for layer in encoder.layers:
            output = layer(hidden, None)
            hidden = output[0] if isinstance(output, tuple) else output
        normed: torch.Tensor = encoder.layer_norm(hidden)
        return normed

    def _decode(
        self,
        encoded: torch.Tensor,
        prompt: tuple[int, ...],
        temperature: float,
        timestamps: bool,
        limits: Sequence[int | None],
    ) -> list[_Row]:
        """Decode every row of ``encoded`` [rows, frames, width], each row to its own limit."""
        rows = encoded.shape[0]
        start = [self._previous, *prompt, self._start] if prompt else [self._start]
        initial = start if timestamps else [*start, self._no_timestamps]
        rules = WhisperTimeStampLogitsProcessor(self.model.generation_config, len(initial))
        generators = [torch.Generator().manual_seed(0) for _ in range(rows)] if temperature > 0 else []
        tokens = torch.tensor([initial] * rows)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        fed = tokens
        logprobs = torch.zeros(rows)
        no_speech = torch.zeros(rows)
        done = torch.zeros(rows, dtype=torch.bool)
        most = min(self._max_new_tokens, self._context - len(initial))
        bounds = torch.tensor([most if limit is None else min(most, limit) for limit in limits])
        for step in range(int(bounds.max())):
            output = self.model.model.decoder(
                input_ids=fed, encoder_hidden_states=encoded, past_key_values=cache, use_cache=True
            )
            logits = self.model.proj_out(output.last_hidden_state)
            if step == 0:
                no_speech = logits[:, len(start) - 1].softmax(-1)[:, self._no_speech]
            scores = logits[:, -1]
            scores[:, self._suppressed] = -torch.inf
            if step == 0:
                scores[:, self._suppressed_first] = -torch.inf
            if timestamps:
                scores = rules(tokens, scores)
            logs = scores.log_softmax(-1)
            chosen = _choose(logs, temperature, generators)
            chosen = torch.where(done, self._end, chosen)
            logprobs += torch.where(done, 0.0, logs.gather(1, chosen[:, None])[:, 0])
            tokens = torch.cat([tokens, chosen[:, None]], 1)
            fed = chosen[:, None]
            done |= (chosen == self._end) | (step + 1 >= bounds)
            if bool(done.all()):
                break
        found = []
        for index, limit in enumerate(limits):
            said = tokens[index, len(initial) :].tolist()
            said = said[: said.index(self._end)] if self._end in said else said
            found.append(_Row(said, float(logprobs[index]), float(no_speech[index]), len(said) == limit))
        return found

    def _read(self, row: _Row, seconds: float, temperature: float, timestamps: bool) -> Transcript:
        tokens, cut = len(row.tokens), row.cut
        segments, advance, kept = self._segments(row.tokens, seconds, cut=cut) if timestamps else ([], WINDOW_S, tokens)
        text = self._text(row.tokens)
        average = row.logprob / (tokens if cut else tokens + 1)
        if row.no_speech > NO_SPEECH and average < GUESS_LOGPROB:
            text, segments, advance, tokens, kept, cut = "", [], WINDOW_S, 0, 0, False
        encoded = text.encode()
        return Transcript(
            text=text,
            segments=segments or [Segment(0.0, seconds, text, row.tokens)] if text else [],
            advance_s=advance,
            tokens=tokens,
            kept=kept,
            cut=cut,
            temperature=temperature,
            avg_logprob=average,
            compression_ratio=len(encoded) / len(zlib.compress(encoded)) if encoded else 0.0,
            no_speech_prob=row.no_speech,
        )

    def _segments(self, tokens: list[int], seconds: float, *, cut: bool) -> tuple[list[Segment], float, int]:
        """Return segments, the distance to the begin of the next window, and the number of tokens before that begin.

        Segments end at pairs of timestamps. Text after the last pair is left to the next window; tokens that are
        ``cut`` have no next window, so the text is a segment to the end of the window.
        """
        stamped = [token >= self._first_stamp for token in tokens]
        ends_open = stamped[-2:] == [False, True]  # the window's last words end inside it
        cuts = [i for i in range(1, len(tokens)) if stamped[i - 1] and stamped[i]]
        if not cuts and not cut:
            last = next((t for t, is_stamp in zip(tokens[::-1], stamped[::-1], strict=True) if is_stamp), 0)
            end = (last - self._first_stamp) * STAMP_S
            text = self._text(tokens)
            segments = [Segment(0.0, end if end > 0 else seconds, text, tokens)] if text.strip() else []
            return segments, WINDOW_S, len(tokens)
        segments = []
        begin = 0
        for place in [*cuts, len(tokens)] if ends_open or cut else cuts:
            part = tokens[begin:place]
            text = self._text(part)
            if text.strip():
                start = (part[0] - self._first_stamp) * STAMP_S
                end = (part[-1] - self._first_stamp) * STAMP_S if part[-1] >= self._first_stamp else seconds
                segments.append(Segment(start, end, text, part))
            begin = place
        advance = WINDOW_S if ends_open or cut else (tokens[cuts[-1] - 1] - self._first_stamp) * STAMP_S
        return segments, advance if advance > 0 else WINDOW_S, begin

    def _text(self, tokens: list[int]) -> str:
        words = [token for token in tokens if token < self._end]
        text: str = self.tokenizer.decode(words, clean_up_tokenization_spaces=False)
        return text


def _choose(logs: torch.Tensor, temperature: float, generators: list[torch.Generator]) -> torch.Tensor:
    """The next token of every row: the likeliest, or one drawn by the row's own generator."""
    if temperature == 0.0:
        return logs.argmax(-1)
    noise = torch.stack([torch.empty_like(logs[0]).exponential_(generator=generator) for generator in generators])
    return ((logs / temperature).softmax(-1) / noise).argmax(-1)


def _doubtful(transcript: Transcript) -> bool:
    if not transcript.text:
        return False
    # The mean of the first few tokens says little of the transcript that they were cut from.
    guessed = transcript.avg_logprob < GUESS_LOGPROB and not transcript.cut
    return guessed or transcript.compression_ratio > LOOP_COMPRESSION
