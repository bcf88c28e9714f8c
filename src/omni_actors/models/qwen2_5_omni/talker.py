"""The talker turns the thinker's input and output into codec tokens.

Its prompt is the thinker's whole prompt, token by token, then the speaker's own start mark and the first token of the
answer, with the codec's marks beside the last two. The rest of the answer is added while codes are generated, one token
for each code. The order is the one of transformers' ``Qwen2_5OmniForConditionalGeneration``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, Qwen2_5OmniTalkerForConditionalGeneration
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniRotaryEmbedding

from omni_actors.connectors.payload import Payload
from omni_actors.models.common.layers import Layers, join, own
from omni_actors.models.common.layout import positions_of
from omni_actors.models.common.load import load_part, read_weights
from omni_actors.models.common.multimodal import Medium
from omni_actors.models.common.rotary import Rotary, sectioned_axes
from omni_actors.models.common.talker import Talker, TalkerDecoder
from omni_actors.models.common.text import Text, context_length
from omni_actors.models.qwen2_5_omni.prompt import Layout
from omni_actors.models.qwen2_5_omni.speakers import read_speakers
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.params import Speech
from omni_actors.worker.checks import TensorSpec, check_input
from omni_actors.worker.device import kernels_of
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive.adapter import PromptInput
from omni_actors.worker.memory import give_memory_back
from omni_actors.worker.tensors import tensor_of


@dataclass(slots=True)
class _Heard:
    """The hidden states received from the thinker so far: ``states`` [n, thinker's width] of ``tokens``. ``mark`` is
    the token with which the speaker begins."""

    mark: int
    tokens: list[int] = field(default_factory=list)
    states: list[torch.Tensor] = field(default_factory=list)
    media: list[Medium] = field(default_factory=list)
    begun: bool = False


class Qwen25OmniTalker(Talker):
    """The talker stage's engine. ``hello.model`` is the checkpoint's folder; options are the autoregressive
    engine's."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._heard: dict[int, _Heard] = {}
        self._layout: Layout
        self.sampling_defaults = {"temperature": 0.9, "top_k": 40, "top_p": 0.8, "repetition_penalty": 1.05}

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        folder = self.hello.model
        assert folder is not None
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        talker = self._talker = config.talker_config
        device, dtype = torch.device(self.hello.device), getattr(torch, self.hello.dtype)
        kernels = kernels_of(self.hello)
        # The talker counts time as its own config says, the rest of a prompt's layout is the thinker's.
        self._layout = Layout.of(config.thinker_config, Text(folder).tokenizer).for_talker(talker)
        speakers = read_speakers(Path(folder))
        self._marks = {name.lower(): speaker.bos_token for name, speaker in speakers.items()}
        self.max_model_len = context_length(talker.max_position_embeddings, self.options["max_model_len"])
        self.eos = frozenset([talker.tts_codec_end_token_id, talker.tts_codec_pad_token_id])
        progress("loading the weights", None)
        model = load_part(Qwen2_5OmniTalkerForConditionalGeneration, talker, folder, "talker.", dtype, device)
        self._mix = join(model.thinker_to_talker_proj, kernels=kernels)
        written = read_weights(folder, "thinker.model.embed_tokens.")["weight"]
        marks = [talker.tts_text_end_token_id, talker.tts_text_pad_token_id, *self._marks.values()]
        with torch.inference_mode():
            self._end, pad, *begins = written[marks].to(device, dtype)
            self._begins = dict(zip(self._marks.values(), begins, strict=True))
            axes = sectioned_axes(talker.rope_parameters["mrope_section"])
            self.decoder = TalkerDecoder(
                own(model.model.embed_tokens),
                Layers(model.model.layers, talker.rms_norm_eps, kernels),
                own(model.model.norm),
                join(model.codec_head, kernels=kernels),
                Rotary(Qwen2_5OmniRotaryEmbedding(talker), self.max_model_len, dtype, device, axes),
                torch.tensor([talker.tts_codec_start_token_id], device=device),
                pad,
                mix=self._mix,
            )
        del model
        give_memory_back()
        return {"dtype": self.hello.dtype, "voices": sorted(self._marks), "code_groups": 1}

    # ---- requests

    def open(self, work: Work) -> PromptInput:
        speech = work.params.get("speech") or Speech()
        self._heard[work.key] = _Heard(self._mark(speech.voice))
        self.begin(work)
        return PromptInput()

    def _mark(self, voice: str) -> int:
        name = next(iter(self._marks), "") if voice == "default" else voice.lower()
        if name not in self._marks:
            raise invalid_request(f"There is no voice '{voice}'; there are: {', '.join(self._marks)}.", "voice")
        return self._marks[name]

    @torch.inference_mode()
    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> PromptInput:
        heard, speaking = self._heard[key], self.requests[key]
        made = PromptInput()
        if payload is not None:
            heard.media += [Medium.of(meta) for meta in payload.meta.get("media", ())]
            check_input(payload, {"states": TensorSpec("float", (len(payload.meta["tokens"]), len(self._end)))})
            rows = tensor_of(payload, "states", device=self.decoder.device, dtype=self.decoder.embeddings.dtype)
            if heard.begun:
                speaking.pending += rows
            else:
                heard.tokens += payload.meta["tokens"]
                heard.states.append(rows)
                prompt = payload.meta["prompt"] - payload.meta.get("answer", 0)
                if len(heard.tokens) > prompt:
                    made = self._begin(key, heard, prompt)
        if end:
            if not heard.begun:  # the thinker said nothing
                self.place(key, torch.zeros(1, self.decoder.width, dtype=self._end.dtype, device=self._end.device))
                made = PromptInput([self._talker.tts_codec_pad_token_id], reuse=False, complete=True, final=True)
            speaking.pending.append(self._end)
            speaking.ended = True
        return made

    def _begin(self, key: int, heard: _Heard, prompt: int) -> PromptInput:
        """The prompt's states and the first of the answer are there."""
        heard.begun = True
        talker = self._talker
        states = torch.cat(heard.states)
        heard.states.clear()
        self.requests[key].pending += states[prompt + 1 :].clone()  # or all of the prompt's would stay in memory
        embedded = torch.cat((states[:prompt], self._begins[heard.mark].unsqueeze(0), states[prompt : prompt + 1]))
        marks = [talker.tts_codec_pad_token_id, talker.tts_codec_start_token_id]
        embedded[-2:] += self.decoder.embeddings[marks]
        # Whatever the answer begins with, it is text.
        ids = [*heard.tokens[:prompt], heard.mark, heard.mark]
        features = positions_of(self._layout, ids, heard.media, self.decoder.device) if heard.media else None
        self.place(key, self._mix(embedded), features)
        return PromptInput([talker.tts_codec_mask_token_id] * prompt + marks, reuse=False, complete=True)

    def close(self, key: int) -> None:
        super().close(key)
        self._heard.pop(key, None)
