"""The text encoder of the digits model: hidden states in the middle of the demo's language model, which is frozen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer

from omni_actors.models.sd3.adapter import Embeddings

LAYERS = 15
"""Layers of the language model that are run. The states of the middle say what the text is about; later layers say
which word comes next."""

TOKENS = 12
"""Tokens whose states the picture model attends to: the last ones of a prompt, and zeros behind a shorter prompt. Each
state has seen all text before its token, so nothing of a longer prompt is lost."""


class PromptEncoder:
    """The first :data:`LAYERS` layers of a causal language model in a folder, in float32."""

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        config = AutoConfig.from_pretrained(folder)
        config.num_hidden_layers = LAYERS
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder, config=config, dtype=torch.float32).eval().to(device)
        self._model.norm = torch.nn.Identity()  # it belongs behind the last layer of the whole model
        self._device = device
        self.width: int = config.hidden_size

    def count(self, prompt: str) -> int:
        """Return the number of a prompt's tokens."""
        return len(self.tokenizer(prompt).input_ids)

    def encode(self, prompts: Sequence[str]) -> list[Embeddings]:
        """Return the embeddings of each prompt: ``sequence`` [1, :data:`TOKENS`, width], and ``pooled`` [1, width],
        the mean over all tokens. An empty prompt has zeros."""
        rows = [self.tokenizer(prompt).input_ids for prompt in prompts]
        found = [self._nothing() for _ in rows]
        full = [place for place, tokens in enumerate(rows) if tokens]
        if not full:
            return found
        # The state of a text's first token says nothing of the token: all others rest their attention on it.
        begun = [[self.tokenizer.bos_token_id, *rows[place]] for place in full]
        longest = max(map(len, begun))
        ids = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens in begun], device=self._device)
        mask = torch.tensor(
            [[1] * len(tokens) + [0] * (longest - len(tokens)) for tokens in begun], device=self._device
        )
        with torch.inference_mode():
            states = self._model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            states = torch.nn.functional.layer_norm(states, states.shape[-1:])
        for place, state in zip(full, states, strict=True):
            tokens = state[1 : 1 + len(rows[place])]
            found[place].pooled[0] = tokens.mean(0)
            last = tokens[-TOKENS:]
            found[place].sequence[0, : len(last)] = last
        return found

    def _nothing(self) -> Embeddings:
        return Embeddings(
            torch.zeros(1, TOKENS, self.width, device=self._device), torch.zeros(1, self.width, device=self._device)
        )
