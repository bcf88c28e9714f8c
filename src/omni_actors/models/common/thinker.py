"""Shared parts of omni models' thinkers: text and features of images, sound and video in, text out, and hidden states
for the talker as a side output."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import AutoConfig, GenerationConfig, PreTrainedModel

from omni_actors.connectors.payload import Payload
from omni_actors.models.common.features import FeatureDecoder, Features, without_features
from omni_actors.models.common.layout import Layout, expand
from omni_actors.models.common.load import load_part, read_weights
from omni_actors.models.common.multimodal import Expanded, Medium, check_features
from omni_actors.models.common.split import Split, load_split, read_split
from omni_actors.models.common.text import (
    Text,
    check_token_ids,
    context_length,
    eos_ids,
    sampling_defaults,
)
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import Prompt, Sampling, Speech
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive.adapter import AutoregressiveAdapter, PromptInput, Release, State
from omni_actors.worker.engines.autoregressive.options import OPTIONS
from omni_actors.worker.memory import give_memory_back
from omni_actors.worker.tensors import tensor_of, tensor_payload

M = TypeVar("M", bound=PreTrainedModel)

FEATURES = "features"
"""The port on which the encoder's features come."""


@dataclass(slots=True)
class _Request:
    """The thinker's state of a request. ``facts`` are the metadata of its media, for the talker's positions: in order
    of arrival, then in the prompt's order."""

    prompt: Prompt
    spoken: str | None
    tensors: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    media: list[Medium] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)
    answer: int = 0
    """Tokens at the prompt's end that are the answer already."""


class Thinker(AutoregressiveAdapter):
    """The thinker stage. A family lays out its prompts (:meth:`layout_of`) and builds its decoder. ``hello.model`` is
    the checkpoint's folder. Options: those of the autoregressive engine.

    A request of task "speech" brings no prompt but a text: the thinker reads the text as its own answer, and adds
    nothing.
    """

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.options = filled(OPTIONS, hello.options)
        self._requests: dict[int, _Request] = {}
        self.text: Text
        self.layout: Layout
        self.decoder: FeatureDecoder
        self.sampling_defaults: Mapping[str, Any] = {}

    @abstractmethod
    def layout_of(self, config: Any) -> Layout:
        """Return the layout of the checkpoint's config. The tokenizer is loaded."""

    @abstractmethod
    def build(self, config: Any, device: torch.device, dtype: torch.dtype) -> FeatureDecoder:
        """Return the decoder, with a side output if this stage passes its states on (:attr:`hands_on`)."""

    def expand(self, prompt: Prompt, media: Sequence[Medium]) -> Expanded:
        """Return the input for a prompt and its media. Raises :class:`OmniError` (400) for an impossible one."""
        return expand(self.text, self.layout, prompt, media)

    @property
    def hands_on(self) -> bool:
        return bool(self.hello.outputs)

    @property
    def folder(self) -> str:
        assert self.hello.model is not None
        return self.hello.model

    def part(self, cls: type[M], text: Any, dtype: torch.dtype, device: torch.device) -> M:
        """Return the text model's module, of the checkpoint or (with several ranks) with this rank's part of the
        weights."""
        prefix = "thinker.model."
        if self.group.size == 1:
            return load_part(cls, text, self.folder, prefix, dtype, device)
        split = self._split(text)
        make: Callable[[], M] = partial(cls._from_config, text, dtype=dtype)
        return load_split(make, self.folder, prefix, split, dtype, device)

    def head(self, text: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return the weight of the head, or this rank's part of it."""
        prefix = "thinker.lm_head."
        if self.group.size == 1:
            return read_weights(self.folder, prefix)["weight"].to(device, dtype)
        return read_split(self.folder, prefix, self._split(text), dtype, device)["weight"]

    def _split(self, text: Any) -> Split:
        return Split(text, self.group, by_expert=self.hello.strategy.get("expert", 1) > 1)

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        progress("loading the tokenizer", None)
        self.text = Text(self.folder, self.options)
        self.vocabulary = self.text.vocabulary
        config = AutoConfig.from_pretrained(self.folder, local_files_only=True)
        generation = GenerationConfig.from_pretrained(self.folder, local_files_only=True)
        self.eos = eos_ids(generation, config, self.text.tokenizer)
        self.sampling_defaults = sampling_defaults(generation)
        text_config = config.thinker_config.text_config
        self.max_model_len = context_length(text_config.max_position_embeddings, self.options["max_model_len"])
        self.layout = self.layout_of(config)
        progress("loading the weights", None)
        self.decoder = self.build(config, torch.device(self.hello.device), getattr(torch, self.hello.dtype))
        give_memory_back()
        return {"architecture": config.architectures[0], "dtype": self.hello.dtype, **self.text.facts}

    # ---- requests

    def open(self, work: Work) -> PromptInput:
        request = _Request(*self._asked(work))
        self._requests[work.key] = request
        return PromptInput() if FEATURES in work.ports else self._begin(work.key, request)

    def _asked(self, work: Work) -> tuple[Prompt, str | None]:
        prompt, speech = work.params.get("prompt"), work.params.get("speech")
        if isinstance(prompt, Prompt):
            return prompt, None
        if not isinstance(speech, Speech) or speech.text is None or not speech.text.strip():
            raise invalid_request("There is no text to say.", param="input")
        self.text.check_words(speech.text, "input")
        messages = [{"role": "user", "content": speech.text}]
        return Prompt(messages=messages), speech.text

    def sampling(self, work: Work) -> Sampling:
        return super().sampling(work) if "prompt" in work.params else Sampling(temperature=0.0)

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> PromptInput:
        request = self._requests[key]
        if payload is not None:
            medium = Medium.of(payload.meta)
            check_features(payload, medium, self.decoder.embeddings.shape[1])
            request.media.append(medium)
            request.facts.append(payload.meta)
            decoder = self.decoder
            request.tensors[medium.index] = {
                name: tensor_of(payload, name, device=decoder.device, dtype=decoder.embeddings.dtype)
                for name in payload.tensors
            }
        return self._begin(key, request) if end else PromptInput()

    def _begin(self, key: int, request: _Request) -> PromptInput:
        """Start a request whose whole prompt is known."""
        prompt, spoken = request.prompt, request.spoken
        self.text.check_prompt(prompt, self.max_model_len)
        if prompt.token_ids is not None:
            check_token_ids(prompt.token_ids, self.decoder.vocab_size)
        made = self.expand(prompt, request.media)
        facts = {it["index"]: it for it in request.facts}
        request.facts = [facts[at.medium.index] for at in made.placements if at.tensor == "features"]
        if made.placements:
            self.decoder.requests[key] = self._features(made, request.tensors)
        request.tensors = {}
        tokens = made.tokens
        if spoken is not None:
            answer = self.text.encode_words(spoken, self.max_model_len, "input")
            tokens = tokens + answer
            request.answer = len(answer)
        return PromptInput(
            tokens, root=made.root, continued=prompt.messages is None, complete=True, final=spoken is not None
        )

    def _features(self, made: Expanded, tensors: Mapping[int, Mapping[str, torch.Tensor]]) -> Features:
        rows = [tensors[at.medium.index][at.tensor] for at in made.placements]
        places = torch.cat([at.places for at in made.placements])
        order = places.argsort()
        deepstack = [
            tensors[at.medium.index].get("deepstack") if at.tensor == "features" else None for at in made.placements
        ]
        levels = max((len(d) for d in deepstack if d is not None), default=0)
        deep = None
        if levels:
            pieces = [r.new_zeros(levels, *r.shape) if d is None else d for d, r in zip(deepstack, rows, strict=True)]
            deep = torch.cat(pieces, 1)[:, order]
        ascending: np.ndarray[Any, np.dtype[np.int64]] = places[order].numpy()
        return Features(
            ascending, torch.cat(rows)[order], made.positions.to(self.decoder.device), made.rope_delta, deep
        )

    def export_state(self, key: int) -> State:
        request, features = self._requests[key], self.decoder.requests.get(key)
        delta = 0.0 if features is None else features.delta
        return State({"delta": delta, "answer": request.answer, "media": request.facts})

    def import_state(self, work: Work, state: State) -> None:
        """Take over a request whose prompt was computed elsewhere. The features stay there; the answer needs only their
        part in its positions."""
        request = self._requests[work.key] = _Request(*self._asked(work))
        request.answer, request.facts = state.facts["answer"], state.facts["media"]
        if delta := state.facts["delta"]:
            self.decoder.requests[work.key] = without_features(delta)

    def output(self, release: Release) -> Payload | None:
        if release.states is None:
            return None
        meta: dict[str, Any] = {"start": release.start, "tokens": list(release.tokens), "prompt": release.prompt_len}
        request = self._requests[release.key]
        if request.answer:
            meta["answer"] = request.answer
        if facts := request.facts:
            meta["media"] = list(facts)
            facts.clear()
        return tensor_payload("hidden", meta, {"states": release.states})

    def close(self, key: int) -> None:
        self._requests.pop(key, None)
        self.decoder.requests.pop(key, None)
