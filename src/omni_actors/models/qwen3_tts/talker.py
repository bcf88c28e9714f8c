"""The talker stage: text, and perhaps what was heard of a voice, to codec frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from omni_actors.connectors.payload import Payload
from omni_actors.models.common.depth import DepthDecoder, DepthSampling
from omni_actors.models.common.layers import Layers, join, own
from omni_actors.models.common.load import load_part
from omni_actors.models.common.rotary import Rotary, interleaved_axes
from omni_actors.models.common.talker import Talker, TalkerDecoder, resize_mlp, speech_sampling
from omni_actors.models.common.text import Text, context_length
from omni_actors.models.qwen3_tts.folder import Folder
from omni_actors.models.qwen3_tts.package import config_of, package, quiet
from omni_actors.models.qwen3_tts.pipeline import TALKER_OPTIONS
from omni_actors.models.qwen3_tts.prompt import Asked, Layout, Marks, lay_out, tokens_of
from omni_actors.platforms.runtime.kernels import Kernels
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import Sampling, Speech
from omni_actors.worker.checks import TensorSpec, check_input
from omni_actors.worker.device import kernels_of
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive.adapter import PromptInput
from omni_actors.worker.engines.autoregressive.sampling import resolve
from omni_actors.worker.memory import give_memory_back
from omni_actors.worker.tensors import tensor_of

VOICE = "voice"
"""The port on which what was heard of a clip comes."""

LEAST_TOKENS = 2
"""The end mark is never the first token or the second: the package's ``generate`` bans it so long."""

RESIDUAL = {"subtalker_temperature": 0.9, "subtalker_top_k": 50, "subtalker_top_p": 1.0}
"""How residual codes are drawn where the generation config does not say: the package's own defaults."""

FIRST = {"temperature": 0.9, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.05}
"""The same for a frame's first code."""


@dataclass(frozen=True, slots=True)
class _Voice:
    """A cloned voice: ``timbre`` [width], and ``codes`` int64 [frames, groups] unless only the timbre is wanted."""

    timbre: torch.Tensor
    codes: torch.Tensor | None


class Qwen3TTSTalker(Talker):
    """The talker stage's engine. ``hello.model`` is the checkpoint's folder; options are the autoregressive engine's
    and the ones declared in :mod:`omni_actors.models.qwen3_tts.pipeline`."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.options = filled(TALKER_OPTIONS, self.options)
        self._waiting: dict[int, Speech] = {}
        self._context: dict[int, int] = {}
        self._recommended: Mapping[str, Any] = {}
        self._folder: Folder
        self._text: Text

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        assert self.hello.model is not None
        path = Path(self.hello.model)
        self._folder = Folder.read(path)
        config = config_of(path)
        talker = config.talker_config
        device, dtype = torch.device(self.hello.device), getattr(torch, self.hello.dtype)
        kernels = kernels_of(self.hello)
        progress("loading the tokenizer", None)
        with quiet():
            self._text = Text(path)
        self._marks = Marks.of(config)
        self._recommended = self._folder.generation
        self.sampling_defaults = {name: self._recommended.get(name, value) for name, value in FIRST.items()}
        if not self._recommended.get("do_sample", True):
            self.sampling_defaults = {"temperature": 0.0}
        self.max_model_len = context_length(talker.max_position_embeddings, self.options["max_model_len"])
        self.eos = frozenset([self._marks.eos])
        progress("loading the weights", None)
        model = load_part(package().talker, talker, path, "talker.", dtype, device)
        self._project = resize_mlp(model.text_projection, kernels)
        self._written = own(model.model.text_embedding)
        with torch.inference_mode():
            pad = self._embed_text([self._marks.text_pad])[0]
            self._residual = [own(embedding) for embedding in model.code_predictor.model.codec_embedding]
            self.depth = _depth(model.code_predictor, talker, self._residual, dtype, device, kernels)
            self.decoder = self._decoder(model, talker, pad, device, dtype, kernels)
        del model
        give_memory_back()
        return {
            "dtype": self.hello.dtype,
            "task_type": self._folder.kind,
            "voices": list(self._folder.voices),
            "languages": list(self._folder.languages),
            "code_groups": talker.num_code_groups,
        }

    def _decoder(
        self, model: Any, talker: Any, pad: torch.Tensor, device: torch.device, dtype: torch.dtype, kernels: Kernels
    ) -> TalkerDecoder:
        axes = interleaved_axes(talker.rope_scaling["mrope_section"], talker.head_dim)
        first = talker.vocab_size - 1024
        suppressed = [i for i in range(first, talker.vocab_size) if i != self._marks.eos]
        return TalkerDecoder(
            own(model.model.codec_embedding),
            Layers(model.model.layers, talker.rms_norm_eps, kernels),
            own(model.model.norm),
            join(model.codec_head, kernels=kernels),
            Rotary(package().talker_rotary(talker), self.max_model_len, dtype, device, axes),
            torch.tensor(suppressed, device=device),
            pad,
            self._project,
        )

    # ---- requests

    def sampling(self, work: Work) -> Sampling:
        made = speech_sampling(work.params.get("speech") or Speech())
        made.min_tokens = LEAST_TOKENS if made.max_tokens is None else min(LEAST_TOKENS, made.max_tokens)
        return made

    @torch.inference_mode()
    def open(self, work: Work) -> PromptInput:
        speech: Speech = work.params.get("speech") or Speech()
        self._check(speech, VOICE in work.ports)
        self.begin(work).depth = self._depth_sampling(work)
        if VOICE in work.ports:
            self._waiting[work.key] = speech
            return PromptInput()
        try:
            return self._begin(work.key, speech, None)
        except BaseException:
            self.close(work.key)
            raise

    def _depth_sampling(self, work: Work) -> DepthSampling:
        """Return the sampling of a frame's further codes: the request's own if given, else the values that the makers
        recommend."""
        asked = self.sampling(work)
        first = resolve(asked, self.options["sampling"], self.sampling_defaults)
        makers = RESIDUAL | dict(self._recommended)
        if first.greedy or not makers.get("subtalker_dosample", True):
            return DepthSampling(temperature=0.0)
        pick = {name: getattr(asked, name) for name in ("temperature", "top_k", "top_p")}
        temperature, top_k, top_p = (makers[f"subtalker_{n}"] if v is None else v for n, v in pick.items())
        return DepthSampling(float(temperature), max(0, int(top_k)), float(top_p))

    @torch.inference_mode()
    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> PromptInput:
        if payload is None:
            return PromptInput()
        codebook = min(map(len, (self.decoder.embeddings, *self._residual)))
        timbre, codes = TensorSpec("float", (self.decoder.width,)), TensorSpec("int64", (None, None), 0, codebook)
        check_input(payload, {"timbre": timbre, "codes": codes})
        frames = tensor_of(payload, "codes")
        voice = _Voice(tensor_of(payload, "timbre", device=self.decoder.device), frames if len(frames) else None)
        return self._begin(key, self._waiting.pop(key), voice)

    def _check(self, speech: Speech, clip: bool) -> None:
        """Raise 400 for a request beyond this checkpoint's abilities."""
        folder = self._folder
        if not (speech.text or "").strip():
            raise invalid_request("Input text cannot be empty.", param="input")
        if speech.task_type not in (None, folder.kind):
            raise invalid_request(f"This checkpoint does '{folder.kind}', not '{speech.task_type}'.", param="task_type")
        if speech.speed != 1.0:
            raise invalid_request("This model speaks at its own speed.", param="speed")
        if speech.instructions and not folder.instructed:
            raise invalid_request("This checkpoint takes no instructions.", param="instructions")
        if folder.kind == "voice_design" and not speech.instructions:
            raise invalid_request("Designing a voice needs 'instructions': what it is like.", param="instructions")
        if folder.kind == "clone":
            if not clip:
                raise invalid_request("Cloning needs the clip: give 'ref_audio'.", param="ref_audio")
            if not speech.x_vector_only and not (speech.ref_text or "").strip():
                raise invalid_request("Cloning needs 'ref_text', or the timbre alone.", param="ref_text")
        elif clip or speech.ref_text or speech.x_vector_only:
            param = "ref_audio" if clip else "ref_text" if speech.ref_text else "x_vector_only_mode"
            raise invalid_request(f"This checkpoint does '{folder.kind}': it clones no voice.", param=param)
        folder.language(speech.language)
        folder.voice(speech.voice)

    def _begin(self, key: int, speech: Speech, voice: _Voice | None) -> PromptInput:
        """The prompt is known."""
        folder, marks = self._folder, self._marks
        clip_text = None
        if voice is not None and not speech.x_vector_only:
            clip_text = self._encode((speech.ref_text or "").strip(), "ref_text")
        head, text, instructions = tokens_of(
            lambda it: self._encode(it, "input"), speech.text or "", speech.instructions
        )
        speaker = folder.voice(speech.voice)
        whole = self.options["non_streaming_mode"]
        layout = lay_out(
            marks,
            Asked(
                head,
                text,
                whole=folder.kind != "clone" if whole is None else whole,
                language=folder.language_id(speech.language, speaker),
                speaker=None if speaker is None else folder.voices[speaker],
                cloned=voice is not None,
                instructions=instructions,
                clip_text=clip_text,
                clip_frames=0 if voice is None or clip_text is None or voice.codes is None else len(voice.codes),
            ),
        )
        if len(layout.text) + (speech.max_tokens or 0) > self.max_model_len:
            most = self.max_model_len - len(layout.text)
            if most < 1:
                raise invalid_request("The text is too long for this model.", "input", "context_length_exceeded")
            raise invalid_request(f"Behind this text there is room for {most} frames.", "max_new_tokens")
        speaking = self.requests[key]
        self.place(key, self._embed(layout, voice))
        if layout.beside:
            speaking.text.extend(self._embed_text(layout.beside))
        speaking.ended = True
        if layout.frames and voice is not None and voice.codes is not None:
            # The codec hears them before the first frame, so that the sound goes on where the clip's ends.
            self._context[key] = layout.frames
            speaking.unsent += voice.codes
        return PromptInput([marks.text_pad] * len(layout.text), reuse=False, complete=True)

    def _encode(self, text: str, param: str) -> list[int]:
        return self._text.encode(text, self.max_model_len, param, add_special_tokens=False)

    def _embed_text(self, ids: list[int]) -> torch.Tensor:
        """[n, width] of the talker."""
        written = F.embedding(torch.tensor(ids, device=self._written.device), self._written)
        return self._project(written)

    def _embed(self, layout: Layout, voice: _Voice | None) -> torch.Tensor:
        """The prompt's rows [n, width]."""
        rows = self._embed_text(layout.text)
        device, embeddings = rows.device, self.decoder.embeddings
        places = [(at, i) for at, i in enumerate(layout.codec) if i is not None]
        index, ids = torch.tensor(places, device=device).unbind(1)
        rows[index] += F.embedding(ids, embeddings)
        if voice is not None:
            if layout.speaker_at is not None:
                rows[layout.speaker_at] += voice.timbre.to(rows.dtype)
            if layout.frames and voice.codes is not None:
                codes = voice.codes.to(device)
                frames = F.embedding(codes[:, 0], embeddings)
                for group, residual in enumerate(self._residual, 1):
                    frames = frames + F.embedding(codes[:, group], residual)
                rows[layout.frames_at : layout.frames_at + layout.frames] += frames
        return rows

    def output(self, release: Any) -> Payload | None:
        payload = super().output(release)
        if payload is not None and (frames := self._context.pop(release.key, 0)):
            payload.meta["context"] = frames
        return payload

    def close(self, key: int) -> None:
        super().close(key)
        self._waiting.pop(key, None)
        self._context.pop(key, None)


def _depth(
    model: Any,
    talker: Any,
    embeddings: list[torch.Tensor],
    dtype: torch.dtype,
    device: torch.device,
    kernels: Kernels,
) -> DepthDecoder:
    config = talker.code_predictor_config
    project = model.small_to_mtp_projection
    return DepthDecoder(
        Layers(model.model.layers, config.rms_norm_eps, kernels),
        Rotary(package().predictor_rotary(config), talker.num_code_groups + 1, dtype, device),
        own(model.model.norm),
        embeddings,
        [join(head, kernels=kernels) for head in model.lm_head],
        None if isinstance(project, torch.nn.Identity) else join(project, kernels=kernels),
    )
