"""transformers' Qwen2.5-Omni, whole, as the checkpoint was trained.

Two things are put right. ``generate`` leaves an attention mask of ones alone away before it calls the talker, and the
talker (transformers 5.23) adds the codec's marks to its prompt's last two tokens, and counts the positions of images
and videos, only where it is given a mask: here it is. And the vocoder begins with the noise that ours begins with.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tests.models.omni.media import RATE
from tests.models.omni.whole import Whole

from omni_actors.models.qwen2_5_omni.flow import block_noise

SEED = 0
"""Of the noise, as in a request that names none."""

STEPS = 4
"""Of the flow's solver: fewer than by default, for the sake of time."""


LONGEST_CLIP_S = 12
"""The processor pads every clip with silence to five minutes, and cuts it off again. Less of it does as well here."""


class Qwen25Omni(Whole):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.processor.feature_extractor.n_samples = LONGEST_CLIP_S * RATE

    def generate(self, inputs: Mapping[str, Any], frames: int, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        talker = self.config.talker_config
        # ``generate`` would hand pixels to the talker too, which takes none.
        mine = {f"thinker_{name}" if name.startswith("pixel") else name: value for name, value in inputs.items()}
        with masked(self.model.talker), beginning_with_noise(self.model.token2wav, frames, SEED):
            made: tuple[torch.Tensor, torch.Tensor] = self.model.generate(
                **mine,
                **options,
                talker_max_new_tokens=frames,
                token2wav_num_steps=STEPS,
                talker_eos_token_id=[talker.tts_codec_end_token_id, talker.tts_codec_pad_token_id],
            )
        return made

    def states(self, tokens: torch.Tensor, hidden: Any) -> torch.Tensor:
        """Sums of embeddings (features count as zero) and of the last layer's normed output."""
        embedded = torch.cat([step[0] for step in hidden], dim=1)[0]
        last = torch.cat([step[-1] for step in hidden], dim=1)[0]
        return last + embedded.masked_fill(self.is_media(tokens[: len(embedded)])[:, None], 0)

    def codes(self, talker: Any) -> torch.Tensor:
        drawn = talker.sequences[0, -len(talker.logits) :]
        config = self.config.talker_config
        ends = torch.tensor([config.tts_codec_end_token_id, config.tts_codec_pad_token_id])
        return drawn[~torch.isin(drawn, ends)][:, None]


@contextmanager
def masked(talker: Any) -> Iterator[None]:
    """Give the talker the mask that ``generate`` leaves away."""
    forward = talker.forward

    @functools.wraps(forward)  # ``generate`` reads which arguments it takes
    def with_mask(**given: Any) -> Any:
        embeds, past = given.get("inputs_embeds"), given.get("past_key_values")
        batch, count = (given["input_ids"] if embeds is None else embeds).shape[:2]
        known = 0 if past is None else past.get_seq_length()
        return forward(**given | {"attention_mask": torch.ones(batch, known + count, dtype=torch.long)})

    talker.forward = with_mask
    try:
        yield
    finally:
        del talker.forward


@contextmanager
def beginning_with_noise(token2wav: Any, codes: int, seed: int) -> Iterator[None]:
    """Let the flow of at most so many codes begin with our noise."""
    dit = token2wav.code2wav_dit_model
    blocks = -(-codes * dit.repeats // dit.block_size)
    noise = torch.cat([block_noise(seed, block, dit.block_size, dit.mel_dim) for block in range(blocks)])

    def given(shape: list[int], **_: Any) -> torch.Tensor:
        assert shape[0] == 1
        return noise[None, : shape[1]]

    with mock.patch.object(torch, "randn", given):
        yield
