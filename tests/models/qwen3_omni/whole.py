"""transformers' Qwen3-Omni, whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tests.models.omni.whole import Whole


class Qwen3Omni(Whole):
    def generate(self, inputs: Mapping[str, Any], frames: int, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        made: tuple[torch.Tensor, torch.Tensor] = self.model.generate(
            **inputs,
            **options,
            return_audio=True,
            thinker_eos_token_id=[self.config.im_end_token_id],
            # The last one is drawn and not made a frame of.
            talker_max_new_tokens=frames + 1,
        )
        return made

    def states(self, tokens: torch.Tensor, hidden: Any) -> torch.Tensor:
        """Embeddings of text, and the inner states of features."""
        embedded = torch.cat([step[0] for step in hidden], dim=1)[0]
        inner = torch.cat([step[self.config.talker_config.accept_hidden_layer] for step in hidden], dim=1)[0]
        return torch.where(self.is_media(tokens[: len(embedded)])[:, None], inner, embedded)

    def codes(self, talker: Any) -> torch.Tensor:
        return torch.cat([codes for *_, codes in talker.hidden_states if codes is not None])
