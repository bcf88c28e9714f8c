"""Loads a plain Hugging Face ``*ForCausalLM`` folder and turns prompts into tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils.logging import disable_progress_bar

from omni_actors.connectors.payload import Payload
from omni_actors.models.causal_lm.fused import FusedDecoder, supports
from omni_actors.models.causal_lm.generic import GenericDecoder, check_supported
from omni_actors.models.causal_lm.prompts import Prompts
from omni_actors.models.causal_lm.trial import check_computes, logits_by_itself
from omni_actors.models.common.split import Split, load_split
from omni_actors.models.common.text import (
    Text,
    context_length,
    eos_ids,
    sampling_defaults,
)
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.options import filled
from omni_actors.worker.device import kernels_of
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive.adapter import AutoregressiveAdapter, PromptInput
from omni_actors.worker.engines.autoregressive.decoder import Decoder
from omni_actors.worker.engines.autoregressive.options import OPTIONS
from omni_actors.worker.memory import give_memory_back


class CausalLM(AutoregressiveAdapter):
    """``hello.model`` is the folder. Options: those of
    :data:`omni_actors.worker.engines.autoregressive.options.OPTIONS`."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._options = filled(OPTIONS, hello.options)
        self._text: Text
        self._prompts: Prompts
        self.sampling_defaults: Mapping[str, Any] = {}

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        disable_progress_bar()  # of transformers: nobody reads it here
        folder, dtype = self.hello.model, getattr(torch, self.hello.dtype)
        progress("loading the tokenizer", None)
        assert folder is not None
        self._text = Text(folder, self._options)
        self.vocabulary = self._text.vocabulary
        progress("loading the weights", None)
        model = self._model(folder, dtype)
        generation = model.generation_config
        self.eos = eos_ids(generation, model.config, self._text.tokenizer)
        self.sampling_defaults = sampling_defaults(generation)
        self._fused = bool(self._options["fused"]) and supports(model)
        if not self._fused and self.group.size == 1:
            check_supported(model)
        made_for = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.max_model_len = context_length(made_for, self._options["max_model_len"])
        progress("preparing the weights", None)
        self.decoder = self._decoder(model)
        self._prompts = Prompts(self._text, self.vocab_size, self.max_model_len)
        architecture = type(model).__name__
        del model
        give_memory_back()
        return {
            "architecture": architecture,
            "dtype": self.hello.dtype,
            "decoder": type(self.decoder).__name__,
            **self._text.facts,
        }

    def _model(self, folder: str, dtype: torch.dtype) -> Any:
        if self.group.size == 1:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
            return model.to(self.hello.device).eval()
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        split = Split(config, self.group)
        model = load_split(
            lambda: AutoModelForCausalLM.from_config(config, dtype=dtype), folder, "", split, dtype, self.hello.device
        )
        with contextlib.suppress(OSError):  # without one, it is what the config says
            model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
        return model

    def _decoder(self, model: Any) -> Decoder:
        decoder: Decoder
        if self._fused:
            decoder = FusedDecoder(model, self.max_model_len, kernels_of(self.hello), self.group)
        elif self.group.size > 1:
            message = f"{type(model).__name__} runs by transformers' own layers, which are not split over ranks"
            raise OmniError(ErrorInfo(message=message, code="bad_model", status=500))
        else:
            wanted = logits_by_itself(model)
            decoder = GenericDecoder(model)
            check_computes(type(model).__name__, decoder, wanted, kernels_of(self.hello))
        return decoder

    def open(self, work: Work) -> PromptInput:
        return self._prompts.open(work)

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> PromptInput:
        return self._prompts.feed(key, payload, end)

    def close(self, key: int) -> None:
        self._prompts.close(key)
