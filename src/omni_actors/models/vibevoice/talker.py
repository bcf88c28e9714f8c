"""The talker: a language model decides, step by step, whether speech begins, goes on or ends.

Where speech goes on, a diffusion head makes a latent of the model's hidden state, the decoder makes sound of the
latent, and an encoder encodes the sound: latent and encoding are the next step's input. With guidance, a second context
without text runs beside the first, and the difference made by the text is enlarged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, VibeVoiceForConditionalGeneration, VibeVoiceProcessor
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor

from omni_actors.models.common import speech
from omni_actors.models.common.speech import Frames, Utterance, load_model, most_frames, noise
from omni_actors.models.vibevoice.pipeline import PIPELINE, VOICES
from omni_actors.protocol.errors import ErrorInfo, OmniError, invalid_request
from omni_actors.protocol.params import Speech
from omni_actors.protocol.request import Usage
from omni_actors.worker.checks import OutputError
from omni_actors.worker.engines.oneshot.outputs import Piece, audio_piece

_SPEAKER = re.compile(r"\s*Speaker\s+([0-3])\s*:\s*", re.IGNORECASE)

_SCHEDULER = "DPMSolverMultistepScheduler"
_SCHEDULE = {"beta_schedule": "squaredcos_cap_v2", "prediction_type": "v_prediction"}
"""What the released checkpoints were trained with, where a generation config says nothing."""


class Talker(speech.Talker):
    """The talker stage's engine; frames are sound, [1, samples]."""

    frames = "samples"
    languages = PIPELINE.languages

    def start(self, folder: Path) -> dict[str, Any]:
        self._processor = VibeVoiceProcessor.from_pretrained(folder, local_files_only=True)
        self.keep_marks(self._processor.tokenizer)
        self._rate = self._processor.feature_extractor.sampling_rate
        self._model = model = load_model(VibeVoiceForConditionalGeneration, self.hello)
        self.know_clips(model.model.audio_tower)
        self._recommended = speech.recommended(model.generation_config)
        self._schedule = self._scheduler()
        config = model.config
        self._sayable = [
            config.audio_bos_token_id,
            config.audio_eos_token_id,
            config.audio_token_id,
            config.eos_token_id,
        ]
        ends = self._recommended.get("eos_token_id", config.eos_token_id)
        self._ends = {ends} if isinstance(ends, int) else set(ends)
        return {"voices": list(VOICES), "sample_rate": self._rate, "channels": 1}

    def _scheduler(self) -> Any:
        name = self._recommended.get("noise_scheduler_class", _SCHEDULER)
        try:
            scheduler = getattr(import_module("diffusers"), name)
        except (ImportError, AttributeError) as error:
            message = f"this model needs {name} of the package diffusers: {error}"
            raise OmniError(ErrorInfo(message=message, code="bad_model", status=500)) from error
        return scheduler(**self._recommended.get("noise_scheduler_config", _SCHEDULE))

    def check(self, utterance: Utterance) -> None:
        if utterance.speech.voice not in ("default", *VOICES):
            raise invalid_request(f"A voice is a speaker's number: {', '.join(VOICES)}.", param="voice")
        if not _turns(utterance.speech):
            raise invalid_request("The text names speakers, and has nothing for them to say.", param="input")

    def piece(self, utterance: Utterance, frames: Frames) -> Piece:
        return audio_piece(utterance.work, frames[0], self._rate)

    @torch.inference_mode()
    def speak(self, utterance: Utterance) -> Iterator[Frames | Usage]:
        model, config = self._model, self._model.config
        ids, embeds = self._prompt(utterance)
        length = embeds.shape[1]
        yield Usage(prompt_tokens=length)
        room = config.text_config.max_position_embeddings - length
        most = most_frames(utterance.speech, self.hello.options, self._recommended.get("max_new_tokens"), room)
        cache = DynamicCache(config=config.text_config)
        free = _FreeContext(model)
        tokens = _Tokens(model, ids, self._sayable, self._guidance)
        heard = sounded = None  # what the codec's two halves remember
        fed: torch.Tensor | None = None  # the last step's input, but for the prompt
        for place in range(most):
            step = model(inputs_embeds=embeds, past_key_values=cache, use_cache=True, logits_to_keep=1)
            token = tokens.choose(step.logits[:, -1])
            if token in self._ends:
                return
            embeds = model.get_input_embeddings()(torch.tensor([[token]], device=model.device))
            if token == config.audio_bos_token_id:
                free.begin()
            elif token == config.audio_token_id:
                start = noise((1, config.audio_config.hidden_size), utterance.speech.seed, "talker", place)
                latent = self._latent(step.last_hidden_state[:, -1], free.read(fed), start)[:, None]
                scaled = latent / model.model.latent_scaling_factor - model.model.latent_bias_factor
                sound = model.model.audio_tower.decode(scaled, padding_cache=sounded, use_cache=True)
                sounded = sound.padding_cache
                yield sound.audio[0].to("cpu", torch.float32).numpy()
                hearing = model.model.semantic_tokenizer_encoder(sound.audio, padding_cache=heard, use_cache=True)
                heard = hearing.padding_cache
                embeds = model.model.multi_modal_projector(latent) + model.model.semantic_connector(hearing.latents)
            fed = embeds

    @property
    def _guidance(self) -> float:
        return float(self.hello.options["guidance_scale"] or self._recommended.get("guidance_scale") or 1.0)

    def _latent(self, given: torch.Tensor, free: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """A latent [1, width], by the hidden states with the text and without."""
        steps = int(self.hello.options["diffusion_steps"] or self._recommended.get("num_diffusion_steps") or 10)
        condition = torch.cat([given, free])
        latent = start.to(condition.device, condition.dtype)
        self._schedule.set_timesteps(num_inference_steps=steps)
        for time in self._schedule.timesteps:
            twice = torch.cat([latent, latent])
            said, unsaid = self._model.model.diffusion_head(twice, time.repeat(2).to(twice), condition=condition).chunk(
                2
            )
            latent = self._schedule.step(unsaid + self._guidance * (said - unsaid), time, latent).prev_sample
        return latent

    def _prompt(self, utterance: Utterance) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens [1, n] of the text and the voice, and their embeddings [1, n, width]."""
        model, asked = self._model, utterance.speech
        turns = _turns(asked)
        if utterance.references:
            clips = [clip.at(self._rate) for clip in utterance.references]
            turns[0]["content"].append({"type": "audio", "audio": np.concatenate(clips)})
        inputs = self._processor.apply_chat_template(turns, tokenize=True, return_dict=True, return_tensors="pt").to(
            self.hello.device
        )
        ids = inputs["input_ids"]
        embeds: torch.Tensor = model.get_input_embeddings()(ids)
        if utterance.references:
            tower = model.model.audio_tower
            latents = tower.encode(inputs["input_values"].to(embeds.dtype), sample=False).latents
            # The voice is blurred a little, as in training; by how much is drawn too.
            spread = tower.config.vae_std * float(noise((1,), asked.seed, "talker.voice", 0))
            latents = latents + spread * noise(latents.shape, asked.seed, "talker.voice", 1).to(latents)
            latents = (latents + model.model.latent_bias_factor) * model.model.latent_scaling_factor
            voice = model.model.multi_modal_projector(latents)
            embeds = embeds.masked_scatter((ids == model.config.audio_token_id)[..., None], voice.to(embeds.dtype))
        return ids, embeds


def _turns(asked: Speech) -> list[dict[str, Any]]:
    """Return a turn for each line that names a speaker, with the following lines without a name; the voice speaks lines
    before the first name."""
    voice = VOICES[0] if asked.voice == "default" else asked.voice
    turns: list[tuple[str, list[str]]] = []
    for line in (asked.text or "").splitlines():
        named = _SPEAKER.match(line)
        if named:
            turns.append((named[1], [line[named.end() :]]))
        elif turns:
            turns[-1][1].append(line)
        else:
            turns.append((voice, [line]))
    said = [(speaker, "\n".join(lines).strip()) for speaker, lines in turns]
    return [{"role": speaker, "content": [{"type": "text", "text": it}]} for speaker, it in said if it]


class _Tokens:
    """Chooses the likeliest of the few allowed tokens. Guidance applies to tokens too, as in transformers, where the
    text is compared with a context of the tokens generated so far."""

    def __init__(self, model: Any, prompt: torch.Tensor, sayable: list[int], guidance: float) -> None:
        self._sayable = sayable
        self._said = prompt[:, -1:]
        self._guide = None
        if guidance != 1.0:
            self._guide = UnbatchedClassifierFreeGuidanceLogitsProcessor(guidance, model)

    def choose(self, logits: torch.Tensor) -> int:
        """Choose the next token by logits [1, vocabulary]. Raises :class:`OutputError` if the logits are not finite."""
        scores = logits.to(torch.float32)
        if not bool(scores.isfinite().all()):
            raise OutputError("logits are not finite")
        if self._guide is not None:
            scores = self._guide(self._said, scores)
        token = self._sayable[int(scores[0, self._sayable].argmax())]
        self._said = torch.cat([self._said, self._said.new_tensor([[token]])], dim=1)
        return token


class _FreeContext:
    """The context without text: the mark where speech begins, and the frames since. Only frames move it on."""

    def __init__(self, model: Any) -> None:
        self._model = model
        bos = model.config.audio_bos_token_id
        self._ids = torch.tensor([[bos]], device=model.device)
        self._past: dict[str, Any] = {
            "attention_mask": torch.ones_like(self._ids),
            "past_key_values": DynamicCache(config=model.config.text_config),
            "use_cache": True,
        }
        self._all = torch.ones(1, dtype=torch.bool, device=model.device)

    def begin(self) -> None:
        """Speech begins anew: forget the frames before."""
        self._model._reset_negative_cache_for_audio_start(self._all, self._ids, self._past)

    def read(self, fed: torch.Tensor | None) -> torch.Tensor:
        """The hidden state [1, width] behind the last input."""
        token = torch.tensor([self._model.config.audio_token_id], device=self._ids.device)
        hidden, self._ids, self._past = self._model._step_negative_branch(
            self._all, token, fed, self._ids, self._past, self._model.__call__
        )
        found: torch.Tensor = hidden
        return found
