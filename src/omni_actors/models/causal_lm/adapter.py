"""Loads a plain Hugging Face ``*ForCausalLM`` folder and turns prompts into tokens."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils.logging import disable_progress_bar

from omni_actors.connectors.payload import Payload
from omni_actors.models.causal_lm.fused import FusedDecoder, supports
from omni_actors.models.causal_lm.generic import GenericDecoder
from omni_actors.models.causal_lm.prompts import fill_transcripts, render
from omni_actors.protocol.errors import ErrorInfo, OmniError, invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.params import Prompt
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.ar_options import OPTIONS
from omni_actors.worker.engines.decoder import AutoregressiveAdapter, Decoder, PromptInput
from omni_actors.worker.engines.detokenize import Vocabulary

TRANSCRIPTS = "transcripts"
"""The port on which the text of the prompt's audio parts comes: payloads with ``text`` and ``index`` in their meta."""

_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


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
        self._tokenizer: Any
        self._most_characters: int
        self.sampling_defaults: Mapping[str, Any] = {}

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        disable_progress_bar()  # of transformers: nobody reads it here
        folder, dtype = self.hello.model, getattr(torch, self.hello.dtype)
        progress("loading the tokenizer", None)
        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        if not self._tokenizer.is_fast:
            raise OmniError(ErrorInfo(message=f"{folder} has no tokenizer.json", code="bad_model", status=500))
        self.vocabulary = Vocabulary(self._tokenizer.backend_tokenizer)
        progress("loading the weights", None)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        model.to(self.hello.device).eval()
        generation = model.generation_config
        self.eos = _eos_ids(generation, model.config, self._tokenizer)
        self.sampling_defaults = _sampling_defaults(generation)
        self.max_model_len = self._context(model.config)
        self._most_characters = self.max_model_len * max(map(len, self._tokenizer.get_vocab()))
        progress("preparing the weights", None)
        self.decoder = self._decoder(model)
        architecture = type(model).__name__
        del model
        _give_memory_back()
        return {
            "architecture": architecture,
            "dtype": self.hello.dtype,
            "decoder": type(self.decoder).__name__,
            "chat": self._tokenizer.chat_template is not None,
        }

    def _decoder(self, model: Any) -> Decoder:
        decoder: Decoder
        if self._options["fused"] and supports(model):
            decoder = FusedDecoder(model, self.max_model_len)
        else:
            decoder = GenericDecoder(model)
        return decoder

    def _context(self, config: Any) -> int:
        made_for = getattr(config.get_text_config(), "max_position_embeddings", None)
        wanted = self._options["max_model_len"]
        if wanted is None:
            if made_for is None:
                raise OmniError(ErrorInfo(message="the model names no context length: set max_model_len", status=500))
            return int(made_for)
        if made_for is not None and wanted > made_for:
            raise OmniError(
                ErrorInfo(message=f"max_model_len is {wanted}; the model was made for {made_for} tokens", status=500)
            )
        return int(wanted)

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
            limit = self.decoder.vocab_size
            if bad := [t for t in prompt.token_ids if not 0 <= t < limit]:
                raise invalid_request(f"Token id {bad[0]} is not below {limit}.", param="prompt")
            return list(prompt.token_ids)
        if prompt.text is not None:
            return self._encode(prompt.text, "prompt")
        text = render(self._tokenizer, prompt, fill_transcripts(prompt.messages or [], transcripts))
        # The template writes the special tokens itself.
        return self._encode(text, "messages", add_special_tokens=False)

    def _encode(self, text: str, param: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids. A text that could not fit if it were all longest tokens is refused unread (400): to encode
        megabytes takes seconds, and every other request of this worker would wait for them."""
        if len(text) > self._most_characters:
            raise invalid_request(
                f"This model's maximum context length is {self.max_model_len} tokens; the prompt's {len(text)} "
                "characters cannot fit.",
                param=param,
                code="context_length_exceeded",
            )
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ids


def _give_memory_back() -> None:
    """The weights as they were loaded are gone, but glibc keeps their pages (measured: 0.4 GB of 1.5 in float32)."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _eos_ids(generation: GenerationConfig, config: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end an answer: the generation config's, else the model's, and the tokenizer's own."""
    found = generation.eos_token_id
    if found is None:
        found = getattr(config, "eos_token_id", None)
    ids = [found] if isinstance(found, int) else list(found or ())
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    return frozenset(ids)


def _sampling_defaults(generation: GenerationConfig) -> dict[str, Any]:
    """What the model's makers recommend. A config that does not sample recommends nothing, as in vLLM."""
    given = generation.to_diff_dict()
    return {name: given[name] for name in _SAMPLING_FIELDS if given.get(name) is not None}
