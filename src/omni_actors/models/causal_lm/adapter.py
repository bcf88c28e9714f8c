"""Loads a plain Hugging Face ``*ForCausalLM`` folder and turns prompts into tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from omni_actors.connectors.payload import Payload
from omni_actors.models.causal_lm.fused import FusedDecoder, supports
from omni_actors.models.causal_lm.generic import GenericDecoder
from omni_actors.models.causal_lm.prompts import fill_transcripts, render
from omni_actors.models.common.text import (
    Text,
    check_token_ids,
    context_length,
    eos_ids,
    give_memory_back,
    sampling_defaults,
)
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.params import Prompt
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.ar_options import OPTIONS
from omni_actors.worker.engines.decoder import AutoregressiveAdapter, Decoder, PromptInput

TRANSCRIPTS = "transcripts"
"""The port on which the text of the prompt's audio parts comes: payloads with ``text`` and ``index`` in their meta."""


@dataclass(slots=True)
class _Waiting:
    prompt: Prompt
    transcripts: dict[int, str] = field(default_factory=dict)


class CausalLM(AutoregressiveAdapter):
    """``hello.model`` is the folder. Options: those of :data:`omni_actors.worker.engines.ar_options.OPTIONS`."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._options = OPTIONS | hello.options
        self._waiting: dict[int, _Waiting] = {}
        self._text: Text
        self.sampling_defaults: Mapping[str, Any] = {}

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        disable_progress_bar()  # of transformers: nobody reads it here
        folder, dtype = self.hello.model, getattr(torch, self.hello.dtype)
        progress("loading the tokenizer", None)
        assert folder is not None
        self._text = Text(folder)
        self.vocabulary = self._text.vocabulary
        progress("loading the weights", None)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        model.to(self.hello.device).eval()
        generation = model.generation_config
        self.eos = eos_ids(generation, model.config, self._text.tokenizer)
        self.sampling_defaults = sampling_defaults(generation)
        made_for = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.max_model_len = context_length(made_for, self._options["max_model_len"])
        progress("preparing the weights", None)
        self.decoder = self._decoder(model)
        architecture = type(model).__name__
        del model
        give_memory_back()
        return {
            "architecture": architecture,
            "dtype": self.hello.dtype,
            "decoder": type(self.decoder).__name__,
            "chat": self._text.chats,
        }

    def _decoder(self, model: Any) -> Decoder:
        decoder: Decoder
        if self._options["fused"] and supports(model):
            decoder = FusedDecoder(model, self.max_model_len)
        else:
            decoder = GenericDecoder(model)
        return decoder

    def open(self, work: Work) -> PromptInput:
        prompt = work.params.get("prompt")
        if not isinstance(prompt, Prompt):
            raise invalid_request("The request has no prompt.", param="messages")
        if TRANSCRIPTS in work.ports:
            self._waiting[work.key] = _Waiting(prompt)
            return PromptInput()
        return PromptInput(self._tokens(prompt, {}), continued=prompt.messages is None)

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> PromptInput:
        waiting = self._waiting[key]
        if payload is not None:
            index = payload.meta.get("index", len(waiting.transcripts))
            waiting.transcripts[index] = waiting.transcripts.get(index, "") + payload.meta["text"]
        return PromptInput(self._tokens(waiting.prompt, waiting.transcripts)) if end else PromptInput()

    def close(self, key: int) -> None:
        self._waiting.pop(key, None)

    def _tokens(self, prompt: Prompt, transcripts: Mapping[int, str]) -> list[int]:
        if prompt.token_ids is not None:
            return check_token_ids(prompt.token_ids, self.decoder.vocab_size)
        if prompt.text is not None:
            return self._text.encode(prompt.text, self.max_model_len, "prompt")
        text = render(self._text.tokenizer, prompt, fill_transcripts(prompt.messages or [], transcripts))
        # The template writes the special tokens itself.
        return self._text.encode(text, self.max_model_len, "messages", add_special_tokens=False)
