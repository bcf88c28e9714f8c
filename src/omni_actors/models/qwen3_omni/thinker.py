"""The thinker turns text and the features of images, sound and video into text; its hidden states go to the talker.

The talker receives the embedding of each token of text, and for each feature the output of an inner layer
(``accept_hidden_layer`` of the talker's config). The vectors are the thinker's side output, kept in its paged cache.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen3OmniMoeThinkerTextModel
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeThinkerTextRotaryEmbedding

from omni_actors.models.common.features import FeatureDecoder
from omni_actors.models.common.layers import Layers, own
from omni_actors.models.common.rotary import Rotary, interleaved_axes
from omni_actors.models.common.thinker import Thinker
from omni_actors.models.qwen3_omni.prompt import Layout
from omni_actors.worker.device import kernels_of


class ThinkerDecoder(FeatureDecoder):
    """Hands on embeddings of text, and captured states of features."""

    def side(self, embedded: torch.Tensor, captured: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        if rows is None:
            return embedded
        return embedded.index_copy(0, rows, captured.index_select(0, rows))


class Qwen3OmniThinker(Thinker):
    """See :class:`~omni_actors.models.common.thinker.Thinker`."""

    def layout_of(self, config: Any) -> Layout:
        return Layout.of(config.thinker_config, self.text.tokenizer)

    def build(self, config: Any, device: torch.device, dtype: torch.dtype) -> FeatureDecoder:
        text, kernels = config.thinker_config.text_config, kernels_of(self.hello)
        model = self.part(Qwen3OmniMoeThinkerTextModel, text, dtype, device)
        head = self.head(text, dtype, device)
        axes = interleaved_axes(text.rope_parameters["mrope_section"], text.head_dim)
        hands_on = self.hands_on and config.enable_audio_output
        return ThinkerDecoder(
            own(model.embed_tokens),
            Layers(model.layers, text.rms_norm_eps, kernels, self.group),
            own(model.norm),
            kernels.linear(head, None),
            Rotary(Qwen3OmniMoeThinkerTextRotaryEmbedding(text), self.max_model_len, dtype, device, axes),
            text.vocab_size,
            side=text.hidden_size if hands_on else 0,
            capture=config.talker_config.accept_hidden_layer if hands_on else None,
            group=self.group,
        )
