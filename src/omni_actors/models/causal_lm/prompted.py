"""Prompts, vocabulary and defaults of a plain ``*ForCausalLM`` folder with a network that another engine runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from transformers import AutoConfig, GenerationConfig

from omni_actors.connectors.payload import Payload
from omni_actors.models.causal_lm.prompts import Prompts
from omni_actors.models.common.text import Text, context_length, eos_ids, sampling_defaults
from omni_actors.protocol.frames import Hello
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive.adapter import PromptAdapter, PromptInput


class PromptedLM(PromptAdapter):
    """The adapter of such a folder, named by ``hello.model``; no weights are loaded. Options are ``max_model_len`` and
    :data:`~omni_actors.models.common.chat_options.CHAT_OPTIONS`."""

    prompts: ClassVar[type[Prompts]] = Prompts
    """What makes token ids of requests."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._vocab_size: int
        self._prompts: Prompts
        self.sampling_defaults: Mapping[str, Any] = {}

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        folder = self.hello.model
        assert folder is not None
        progress("loading the tokenizer", None)
        text = Text(folder, self.hello.options)
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        try:
            generation = GenerationConfig.from_pretrained(folder, local_files_only=True)
        except OSError:  # there is none: what the model's own config says of it
            generation = GenerationConfig.from_model_config(config)
        words = config.get_text_config()
        self.vocabulary = text.vocabulary
        self.eos = eos_ids(generation, words, text.tokenizer)
        self.sampling_defaults = sampling_defaults(generation)
        self.max_model_len = context_length(
            getattr(words, "max_position_embeddings", None), self.hello.options.get("max_model_len")
        )
        self._vocab_size = int(words.vocab_size)
        self._prompts = self.prompts(text, self._vocab_size, self.max_model_len)
        return {"architecture": (config.architectures or [""])[0], "dtype": self.hello.dtype, **text.facts}

    def open(self, work: Work) -> PromptInput:
        return self._prompts.open(work)

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> PromptInput:
        return self._prompts.feed(key, payload, end)

    def close(self, key: int) -> None:
        self._prompts.close(key)
