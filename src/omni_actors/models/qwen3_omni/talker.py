"""The talker turns the thinker's input and output into codec frames.

Its prompt is made of the conversation's user turns (embeddings of text, inner states of media), then of the head of the
assistant's turn with the codec's marks and the speaker beside it. While frames are generated, one token of the
thinker's text is added to each frame. The order is that of transformers' ``Qwen3OmniMoeForConditionalGeneration``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoConfig, Qwen3OmniMoeTalkerForConditionalGeneration
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeRotaryEmbedding,
    Qwen3OmniMoeTalkerRotaryEmbedding,
)

from omni_actors.connectors.payload import Payload
from omni_actors.models.common.depth import DepthDecoder
from omni_actors.models.common.layers import Layers, join, own
from omni_actors.models.common.layout import begins, positions_of
from omni_actors.models.common.load import load_part, read_weights
from omni_actors.models.common.multimodal import Medium
from omni_actors.models.common.rotary import Rotary, interleaved_axes
from omni_actors.models.common.talker import Talker, TalkerDecoder, resize_mlp
from omni_actors.models.common.text import Text, context_length
from omni_actors.models.qwen3_omni.prompt import Layout
from omni_actors.platforms.runtime.kernels import Kernels
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.params import Speech
from omni_actors.worker.checks import TensorSpec, check_input
from omni_actors.worker.device import kernels_of
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive.adapter import PromptInput
from omni_actors.worker.memory import give_memory_back
from omni_actors.worker.tensors import tensor_of

HEAD = 3
"""Tokens that open the assistant's turn: the mark, the role, the line break. The text follows."""


@dataclass(slots=True)
class _Heard:
    """The hidden states received from the thinker so far: ``states`` [n, thinker's width] of ``tokens``."""

    speaker: int
    tokens: list[int] = field(default_factory=list)
    states: list[torch.Tensor] = field(default_factory=list)
    media: list[Medium] = field(default_factory=list)
    prompt: int = 0
    text_from: int | None = None
    """The place of the first token that goes with a frame; ``None`` while the prompt is incomplete."""


class Qwen3OmniTalker(Talker):
    """The talker stage's engine. ``hello.model`` is the checkpoint's folder; options are the autoregressive
    engine's."""

    penalize_prompt = False

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._heard: dict[int, _Heard] = {}
        self._config: Any
        self._layout: Layout
        self.sampling_defaults = {"temperature": 0.9, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.05}

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        folder = self.hello.model
        assert folder is not None
        config = self._config = AutoConfig.from_pretrained(folder, local_files_only=True)
        talker = config.talker_config
        text = talker.text_config
        device, dtype = torch.device(self.hello.device), getattr(torch, self.hello.dtype)
        kernels = kernels_of(self.hello)
        self._layout = Layout.of(config.thinker_config, Text(folder).tokenizer).for_talker(talker)
        self._speakers = {name.lower(): number for name, number in (talker.speaker_id or {}).items()}
        self.max_model_len = context_length(text.max_position_embeddings, self.options["max_model_len"])
        self.eos = frozenset([talker.codec_eos_token_id])
        progress("loading the weights", None)
        model = load_part(Qwen3OmniMoeTalkerForConditionalGeneration, talker, folder, "talker.", dtype, device)
        self._text_projection = resize_mlp(model.text_projection, kernels)
        self._hidden_projection = resize_mlp(model.hidden_projection, kernels)
        marks = [config.tts_bos_token_id, config.tts_eos_token_id, config.tts_pad_token_id]
        written = read_weights(folder, "thinker.model.embed_tokens.")["weight"]
        with torch.inference_mode():
            # The thinker's embedding of the end mark: it is projected with the text, as its last piece.
            rows = written[marks].to(device, dtype)
            self._end = rows[1]
            self._bos, _, self._pad = self._text_projection(rows)
            self.decoder = self._decoder(model, text, device, dtype, kernels)
            self.depth = _depth(model.code_predictor, talker.code_predictor_config, dtype, device, kernels)
        del model
        give_memory_back()
        return {"dtype": self.hello.dtype, "voices": sorted(self._speakers), "code_groups": talker.num_code_groups}

    def _decoder(
        self, model: Any, text: Any, device: torch.device, dtype: torch.dtype, kernels: Kernels
    ) -> TalkerDecoder:
        axes = interleaved_axes(text.rope_parameters["mrope_section"], text.head_dim)
        (eos,) = self.eos
        suppressed = [i for i in range(text.vocab_size - 1024, text.vocab_size) if i != eos]
        return TalkerDecoder(
            own(model.model.codec_embedding),
            Layers(model.model.layers, text.rms_norm_eps, kernels),
            own(model.model.norm),
            join(model.codec_head, kernels=kernels),
            Rotary(Qwen3OmniMoeTalkerRotaryEmbedding(text), self.max_model_len, dtype, device, axes),
            torch.tensor(suppressed, device=device),
            self._pad,
            self._text_projection,
        )

    # ---- requests

    def open(self, work: Work) -> PromptInput:
        speech = work.params.get("speech") or Speech()
        self.begin(work)
        self._heard[work.key] = _Heard(self._speaker(speech.voice))
        return PromptInput()

    def _speaker(self, voice: str) -> int:
        if voice == "default" and self._speakers:
            return int(next(iter(self._speakers.values())))
        found = self._speakers.get(voice.lower())
        if found is None:
            raise invalid_request(f"There is no voice '{voice}'; there are: {', '.join(self._speakers)}.", "voice")
        return int(found)

    @torch.inference_mode()
    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> PromptInput:
        heard, speaking = self._heard[key], self.requests[key]
        if payload is not None:
            heard.tokens += payload.meta["tokens"]
            heard.prompt = payload.meta["prompt"]
            heard.media += [Medium.of(meta) for meta in payload.meta.get("media", ())]
            check_input(payload, {"states": TensorSpec("float", (len(payload.meta["tokens"]), len(self._end)))})
            rows = tensor_of(payload, "states", device=self.decoder.device, dtype=self.decoder.embeddings.dtype)
            if heard.text_from is None:
                heard.states.append(rows)
            else:
                speaking.pending += rows
        made = PromptInput()
        if heard.text_from is None:
            start = _assistant(heard.tokens[: heard.prompt], self._config)
            if len(heard.tokens) > start + HEAD:
                made = self._begin(key, heard, start)
            elif end:  # the thinker said nothing
                self.place(key, self._pad.unsqueeze(0))
                made = PromptInput([self._config.tts_pad_token_id], reuse=False, complete=True, final=True)
        if end:
            speaking.pending.append(self._end)
            speaking.ended = True
        return made

    def _begin(self, key: int, heard: _Heard, start: int) -> PromptInput:
        """The assistant's turn begins at ``start``, and its first token of text is there."""
        states = torch.cat(heard.states)
        heard.states.clear()
        heard.text_from = start + HEAD + 1
        self.requests[key].pending += states[heard.text_from :]
        kept = _users(heard.tokens[:start], self._config)
        media = self._media(heard, frozenset(kept))
        user, ids = self._user_turns(heard, states[:start], kept)
        assistant = self._assistant_turn(states[start : heard.text_from], heard.speaker)
        ids += [self._config.tts_pad_token_id] * len(assistant)
        features = positions_of(self._layout, ids, media, self.decoder.device) if media else None
        self.place(key, torch.cat((user, assistant)), features)
        return PromptInput(ids, reuse=False, complete=True)

    def _media(self, heard: _Heard, kept: frozenset[int]) -> list[Medium]:
        """Mark the media of users' turns; the talker sees no media of other turns."""
        first = begins(self._layout, heard.tokens[: heard.prompt], heard.media)
        return [medium for medium, at in zip(heard.media, first, strict=True) if at in kept]

    def _user_turns(self, heard: _Heard, states: torch.Tensor, kept: list[int]) -> tuple[torch.Tensor, list[int]]:
        """Return the users' turns (tokens ``kept``) as the talker's input [n, width], and their tokens."""
        ids = [heard.tokens[i] for i in kept]
        rows = states[kept]
        media = [i for i, token in enumerate(ids) if token in self._layout.placeholders]
        made = self._text_projection(rows)
        if media:
            made[media] = self._hidden_projection(rows[media])
        return made, ids

    def _assistant_turn(self, states: torch.Tensor, speaker: int) -> torch.Tensor:
        """Return the head of the assistant's turn [9, width]: text above, the codec's marks below. ``states`` are the
        states of the turn's three opening tokens and of the first token of text."""
        talker = self._config.talker_config
        text = self._text_projection(states)
        above = torch.cat((text[:HEAD], self._pad.expand(4, -1), self._bos.unsqueeze(0), text[HEAD:]))
        marks = [
            talker.codec_nothink_id,
            talker.codec_think_bos_id,
            talker.codec_think_eos_id,
            speaker,
            talker.codec_pad_id,
            talker.codec_bos_id,
        ]
        below = F.embedding(torch.tensor(marks, device=self.decoder.device), self.decoder.embeddings)
        above[HEAD:] += below
        return above

    def close(self, key: int) -> None:
        super().close(key)
        self._heard.pop(key, None)


def _assistant(prompt: Sequence[int], config: Any) -> int:
    """Find where the last assistant's turn begins: the place of its start mark. For a prompt without an assistant's
    turn the place is the prompt's end (a completion is not spoken)."""
    for at in range(len(prompt) - 2, -1, -1):
        if prompt[at] == config.im_start_token_id and prompt[at + 1] == config.assistant_token_id:
            return at
    return len(prompt)


def _users(tokens: Sequence[int], config: Any) -> list[int]:
    """The places of tokens in users' turns."""
    kept: list[int] = []
    spoken = False
    for at, token in enumerate(tokens):
        if token == config.im_start_token_id:
            spoken = at + 1 < len(tokens) and tokens[at + 1] == config.user_token_id
        if spoken:
            kept.append(at)
    return kept


def _depth(model: Any, config: Any, dtype: torch.dtype, device: torch.device, kernels: Kernels) -> DepthDecoder:
    base = model.model
    rotary = Rotary(Qwen3OmniMoeRotaryEmbedding(config), config.num_code_groups + 1, dtype, device)
    return DepthDecoder(
        Layers(base.layers, config.rms_norm_eps, kernels),
        rotary,
        own(base.norm),
        [own(embedding) for embedding in base.codec_embedding],
        [join(head, kernels=kernels) for head in model.lm_head],
    )
