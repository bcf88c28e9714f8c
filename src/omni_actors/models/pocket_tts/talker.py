"""The talker: a transformer over voice, text and the latents so far; a flow head makes the next latent out of noise.

A text is cut at its sentences, as the model was trained on short ones; each part begins anew, with the same voice.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import (
    DynamicCache,
    PocketTTSAudioTokenizerConfig,
    PocketTTSAudioTokenizerModel,
    PocketTTSForConditionalGeneration,
    PocketTTSProcessor,
)

from omni_actors.models.common import speech
from omni_actors.models.common.processors import audio_tokenizer_folder, load_processor
from omni_actors.models.common.speech import Frames, Utterance, asked_frames, choosing, load_model, noise
from omni_actors.models.pocket_tts.pipeline import VOICES
from omni_actors.protocol.errors import ErrorInfo, OmniError, invalid_request
from omni_actors.protocol.params import Speech
from omni_actors.protocol.request import Usage

log = logging.getLogger(__name__)

_DEFAULTS = {"num_flow_steps": 1, "eos_threshold": -4.0, "min_frames_before_eos": 6}
"""What the released checkpoints were made for, where a generation config says nothing."""


_BLOCK = 500
"""Characters whose sentences are looked for at once: that takes a time that grows with their square."""


class Talker(speech.Talker):
    frames = "latents"

    def start(self, folder: Path) -> dict[str, Any]:
        codec = audio_tokenizer_folder(folder)
        config = PocketTTSAudioTokenizerConfig.from_pretrained(codec, local_files_only=True)
        config.decoder_config = None  # the codec stage has its own
        encoder = load_model(PocketTTSAudioTokenizerModel, self.hello, codec, config=config)
        self.know_clips(encoder)
        self._processor = load_processor(PocketTTSProcessor, folder, encoder)
        self.keep_marks(self._processor.tokenizer)
        self._rate = self._processor.feature_extractor.sampling_rate
        self._model = load_model(PocketTTSForConditionalGeneration, self.hello)
        self._recommended: Mapping[str, Any] = _DEFAULTS | speech.recommended(self._model.generation_config)
        self._voices = dict(self._read_voices(folder))
        return {"voices": list(self._voices)}

    def _read_voices(self, folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
        width = self._model.config.latent_dim
        for file in sorted((folder / VOICES).glob("*.safetensors")):
            tensors = load_file(file)
            latents = next(iter(tensors.values()))
            if len(tensors) != 1 or latents.ndim != 2 or latents.shape[1] != width:
                message = f"{file} does not hold one voice's latents, [frames, {width}]"
                raise OmniError(ErrorInfo(message=message, code="bad_model", status=500))
            yield file.stem, latents.float()

    def check(self, utterance: Utterance) -> None:
        voice = utterance.speech.voice
        if voice != "default" and voice not in self._voices:
            raise invalid_request(f"There is no voice {voice!r}; there is: {', '.join(self._voices)}.", param="voice")

    @torch.inference_mode()
    def speak(self, utterance: Utterance) -> Iterator[Frames | Usage | None]:
        voice = self._voice(utterance)
        asked = asked_frames(utterance.speech, self.hello.options)
        made = 0
        for text in self._parts(utterance.text):
            if made:
                yield None
            for latents in self._say(text, voice, utterance.speech, made, asked):
                made += not isinstance(latents, Usage)
                yield latents
            if made == asked:
                return

    def _parts(self, text: str) -> Iterator[str]:
        """Split a text into parts spoken one at a time: sentences, with short sentences joined."""
        for block in _blocks(text):
            yield from self._processor.split_text(block, int(self.hello.options["sentence_tokens"]))

    def _say(
        self, text: str, voice: torch.Tensor | None, how: Speech, place: int, asked: int | None
    ) -> Iterator[Frames | Usage]:
        """Speak one part of a text. ``place`` numbers the part's first frame in the utterance of at most ``asked``
        frames."""
        model, recommended = self._model, self._recommended
        inputs, words, tail = self._prompt(text, voice)
        length = inputs["input_ids"].shape[1]
        yield Usage(prompt_tokens=length)
        room = model.config.max_position_embeddings - length
        if room < 1:
            raise invalid_request("The voice and the text leave no room for speech.", param="input")
        budget = recommended.get("max_new_tokens") or math.ceil((words / 3 + 2) * model.config.frame_rate)
        temperature = choosing(how, self.hello.options, recommended).temperature
        steps = int(self.hello.options["flow_steps"] or recommended["num_flow_steps"])
        cache = DynamicCache(config=model.config)
        left: int | None = None  # how many frames follow, once one has ended the speech
        for count in range(min(room, budget if asked is None else asked - place)):
            step = model(**inputs, past_key_values=cache, use_cache=True)
            condition = step.last_hidden_state[:, -1]
            start = noise((1, model.config.latent_dim), how.seed, "talker", place + count) * math.sqrt(temperature)
            latent = model.sample_latent(condition, start.to(condition.device, condition.dtype), steps)
            yield model.denormalize_latents(latent).to("cpu", torch.float32).numpy()
            if left is None and count >= recommended["min_frames_before_eos"]:
                left = tail if float(step.logits[0, -1, 0]) > recommended["eos_threshold"] else None
            if left == 0:
                return
            left = None if left is None else left - 1
            inputs = {
                "input_ids": torch.tensor([[model.config.audio_latent_token_id]], device=model.device),
                "audio_latents": latent[:, None],
            }

    def _voice(self, utterance: Utterance) -> torch.Tensor | None:
        """The latents [frames, width] of the voice to speak with; ``None`` where the checkpoint has none of its own."""
        if not utterance.references:
            name = utterance.speech.voice
            return self._voices.get(name) if name != "default" else next(iter(self._voices.values()), None)
        clips = [clip.at(self._rate) for clip in utterance.references]
        encoder = self._processor.audio_tokenizer
        sound = self._processor.feature_extractor(np.concatenate(clips), sampling_rate=self._rate).to(encoder.device)
        encoded = encoder.encode(sound["input_values"].to(encoder.dtype), sound["padding_mask"])
        latents: torch.Tensor = encoded.latents[0][encoded.latents_mask[0].bool()].float().cpu()
        return latents

    def _prompt(self, text: str, voice: torch.Tensor | None) -> tuple[dict[str, torch.Tensor], int, int]:
        """Return the model's prompt, the number of text tokens in the prompt, and the number of frames after the end of
        speech."""
        parts: list[dict[str, str]] = [{"type": "text", "text": text}]
        if voice is not None:
            parts.insert(0, {"type": "audio"})
        prompt = self._processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=False)
        made = self._processor(
            text=[prompt], audio_prompt_latents=None if voice is None else [voice], return_tensors="pt"
        ).to(self.hello.device)
        config, ids = self._model.config, made["input_ids"]
        marks = [config.audio_prompt_bos_token_id, config.audio_prompt_token_id, config.audio_bos_token_id]
        words = int((~torch.isin(ids, torch.tensor(marks, device=ids.device))).sum())
        names = ("input_ids", "audio_prompt_latents", "audio_prompt_latents_mask")
        return {name: made[name] for name in names if name in made}, words, int(made["frames_after_eos"][0])


def _blocks(text: str) -> Iterator[str]:
    """The text in blocks of at most :data:`_BLOCK` characters, cut behind a sentence, else behind a word."""
    while len(text) > _BLOCK:
        cut = max(text.rfind(mark, 0, _BLOCK) for mark in (". ", "! ", "? ", "\n")) + 1
        cut = cut or text.rfind(" ", 0, _BLOCK) + 1 or _BLOCK
        if block := text[:cut].strip():
            yield block
        text = text[cut:]
    if text.strip():
        yield text
