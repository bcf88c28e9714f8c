"""The talker: an encoder reads the text's bytes, a decoder generates rows of codes.

Codebook ``c`` of frame ``f`` is in row ``f + delay[c]``: a frame is complete when the slowest codebook's row is. Rows
before a codebook's first frame hold its beginning mark. Only the first codebook may end; the other codebooks follow at
their delays. With guidance, each row is computed twice, with the text and without, and the difference is enlarged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DacModel, DiaForConditionalGeneration, DiaProcessor

from omni_actors.models.common import speech
from omni_actors.models.common.processors import audio_tokenizer_folder, load_processor
from omni_actors.models.common.speech import Codes, Frames, Utterance, choosing, load_model, most_frames
from omni_actors.models.dia.pipeline import PIPELINE, VOICES
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.request import Usage
from omni_actors.worker.device import kernels_of

_SPEAKER = re.compile(r"\s*\[S\d\]")

_LEAST_TEMPERATURE = 1.0
"""It was made for more: transformers raises a lower one too (``DiaGenerationMixin``), and so is a deployment's here."""


class Talker(speech.Talker):
    frames = "codes"
    languages = PIPELINE.languages

    def start(self, folder: Path) -> dict[str, Any]:
        codec = load_model(DacModel, self.hello, audio_tokenizer_folder(folder))
        codec.decoder = None  # the codec stage has its own
        codec.float()  # a clip is float32, and what is heard in it are codes
        self.know_clips(codec)
        self._processor = load_processor(DiaProcessor, folder, codec)
        self.keep_marks(self._processor.tokenizer)
        self._rate = self._processor.feature_extractor.sampling_rate
        self._model = load_model(DiaForConditionalGeneration, self.hello)
        self._recommended = speech.recommended(self._model.generation_config)
        self._delays: list[int] = self._model.config.delay_pattern
        return {"voices": list(VOICES)}

    def check(self, utterance: Utterance) -> None:
        if utterance.speech.voice not in ("default", *VOICES):
            raise invalid_request(f"A voice is a speaker of the dialogue: {' or '.join(VOICES)}.", param="voice")
        if utterance.speech.reference and not utterance.speech.ref_text:
            raise invalid_request("This model must know what is said in the reference.", param="ref_text")
        if 0 < (utterance.speech.temperature or 0.0) < _LEAST_TEMPERATURE:
            raise invalid_request("This model draws at a temperature of 1 and more, or not at all (0).", "temperature")
        size = len(self._processor.tokenizer(self._text(utterance), add_special_tokens=False)["input_ids"])
        most = self._model.config.encoder_config.max_position_embeddings
        if size > most:
            raise invalid_request(
                f"The text (with the reference's) has {size} bytes; at most {most} are allowed.", "input"
            )

    @torch.inference_mode()
    def speak(self, utterance: Utterance) -> Iterator[Frames | Usage]:
        config = self._model.config.decoder_config
        inputs = self._prompt(utterance)
        yield Usage(prompt_tokens=inputs["input_ids"].shape[1])
        pad = config.pad_token_id
        given: list[list[int]] = inputs["decoder_input_ids"][0].tolist()  # rows; the pad is where the model may choose
        begin = sum(row[0] != pad for row in given)
        limit = self._recommended.get("max_length") or config.max_position_embeddings
        most = most_frames(utterance.speech, self.hello.options, None, limit - 1 - begin)
        rows = given[:begin]
        decoder = _Decoder(self._model, inputs["input_ids"], self._guidance)
        delays, slowest = self._delays, max(self._delays)
        how = choosing(utterance.speech, self.hello.options, self._recommended)
        if not how.greedy:
            how = replace(how, temperature=max(_LEAST_TEMPERATURE, how.temperature))
        codes = Codes(how, "talker", kernels_of(self.hello), len(delays))
        fresh = rows
        end: int | None = None  # the row in which the first codebook says that it is over
        while end is None or len(rows) < end + slowest:
            chosen = codes.choose_rows(self._allowed(decoder.read(fresh, how.top_k)))
            place = len(rows)
            if end is None and (chosen[0] == config.eos_token_id or place == begin + most):
                end = place
            for channel, delay in enumerate(delays):
                if end is not None and place >= end + delay:
                    chosen[channel] = config.eos_token_id if place == end + delay else pad
                elif place < len(given) and given[place][channel] != pad:
                    chosen[channel] = given[place][channel]
            rows.append(chosen)
            fresh = [chosen]
            frame = place - slowest
            if frame >= begin and (end is None or frame < end):
                yield np.asarray([[rows[frame + delay][channel] for channel, delay in enumerate(delays)]], np.int64)

    @property
    def _guidance(self) -> float:
        scale = self.hello.options["guidance_scale"] or self._recommended.get("guidance_scale") or 1.0
        return float(scale)

    def _allowed(self, logits: torch.Tensor) -> torch.Tensor:
        """Mask the logits [channels, vocabulary] of forbidden codes. Only the first codebook may end, and only where
            the end is
        the likeliest code: then the codebook must end."""
        eos = self._model.config.decoder_config.eos_token_id
        logits[:, eos + 1 :] = -torch.inf
        logits[1:, eos] = -torch.inf
        if int(logits[0].argmax()) == eos:
            logits[0, :eos] = -torch.inf
        else:
            logits[0, eos] = -torch.inf
        return logits

    def _text(self, utterance: Utterance) -> str:
        text = utterance.text
        if not _SPEAKER.match(text):
            voice = VOICES[0] if utterance.speech.voice == "default" else utterance.speech.voice
            text = f"[{voice}] {text}"
        if utterance.speech.ref_text:
            said = utterance.speech.ref_text
            text = f"{said if _SPEAKER.match(said) else f'[{VOICES[0]}] {said}'} {text}"
        return text

    def _prompt(self, utterance: Utterance) -> dict[str, torch.Tensor]:
        sound = None
        if utterance.references:
            sound = [np.concatenate([clip.at(self._rate) for clip in utterance.references])]
        made = self._processor(text=[self._text(utterance)], audio=sound, return_tensors="pt")
        return {name: made[name].to(self.hello.device) for name in ("input_ids", "decoder_input_ids")}


class _Decoder:
    """The decoder and its caches for one utterance."""

    def __init__(self, model: Any, text: torch.Tensor, guidance: float) -> None:
        self._model = model
        self._guidance = guidance
        if guidance != 1.0:
            text = torch.cat([text, torch.zeros_like(text)])  # the second is what it would say without the text
        self._encoded = model.model.encoder(input_ids=text)
        self._batch = len(text)
        self._cache: Any = None

    def read(self, rows: list[list[int]], top_k: int) -> torch.Tensor:
        """Return float32 logits [channels, vocabulary] of the next row."""
        read = torch.tensor([rows] * self._batch, device=self._model.device)
        step = self._model(
            encoder_outputs=self._encoded, decoder_input_ids=read, past_key_values=self._cache, use_cache=True
        )
        self._cache = step.past_key_values
        logits: torch.Tensor = step.logits[:, -1].to(torch.float32)
        if self._guidance == 1.0:
            return logits
        given, free = logits.chunk(2)
        guided: torch.Tensor = given + (given - free) * self._guidance
        if not top_k:
            return guided
        kept = guided.topk(min(top_k, guided.shape[-1]), dim=-1).indices
        return torch.full_like(given, -torch.inf).scatter(-1, kept, given.gather(-1, kept))
