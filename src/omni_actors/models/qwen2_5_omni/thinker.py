"""The thinker turns text and the features of images, sound and video into text; its states go to the talker.

For each token the talker receives the sum of the token's embedding (zero for a feature) and the last layer's normed
output.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen2_5OmniThinkerTextModel
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniRotaryEmbedding

from omni_actors.models.common.features import FeatureDecoder
from omni_actors.models.common.layers import Layers, own
from omni_actors.models.common.rotary import Rotary, sectioned_axes
from omni_actors.models.common.thinker import Thinker
from omni_actors.models.qwen2_5_omni.prompt import Layout
from omni_actors.worker.device import kernels_of


class ThinkerDecoder(FeatureDecoder):
    """Hands on the sum of embeddings (features count as zero) and the last layer's output."""

    def side(self, embedded: torch.Tensor, captured: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        return captured + (embedded if rows is None else embedded.index_fill(0, rows, 0))


class Qwen25OmniThinker(Thinker):
    """See :class:`~omni_actors.models.common.thinker.Thinker`."""

    def layout_of(self, config: Any) -> Layout:
        return Layout.of(config.thinker_config, self.text.tokenizer)

    def build(self, config: Any, device: torch.device, dtype: torch.dtype) -> FeatureDecoder:
        text, kernels = config.thinker_config.text_config, kernels_of(self.hello)
        model = self.part(Qwen2_5OmniThinkerTextModel, text, dtype, device)
        embeddings = own(model.embed_tokens)
        if text.tie_word_embeddings:
            head = embeddings
        else:
            head = self.head(text, dtype, device)
        layers = Layers(model.layers, text.rms_norm_eps, kernels, self.group)
        axes = sectioned_axes(text.rope_parameters["mrope_section"])
        hands_on = self.hands_on and config.enable_audio_output
        return ThinkerDecoder(
            embeddings,
            layers,
            own(model.norm),
            kernels.linear(head, None),
            Rotary(Qwen2_5OmniRotaryEmbedding(text), self.max_model_len, dtype, device, axes),
            text.vocab_size,
            side=text.hidden_size if hands_on else 0,
            capture=len(layers) if hands_on else None,
            group=self.group,
        )
