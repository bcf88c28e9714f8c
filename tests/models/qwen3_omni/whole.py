"""transformers' Qwen3-Omni, whole and greedy: what its parts hand to one another, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.models.omni.media import Given, for_processor

from omni_actors.models.tiny import reference


@dataclass(frozen=True)
class Outcome:
    """``prompt`` and ``tokens`` (the answer's); ``logits`` [answer, vocabulary]; ``states`` [computed, width], which
    the talker is made of; ``codes`` [frames, groups]; ``talker_logits`` [drawn codes, vocabulary]; ``samples``."""

    prompt: list[int]
    tokens: list[int]
    logits: torch.Tensor
    states: torch.Tensor
    codes: torch.Tensor
    talker_logits: torch.Tensor
    samples: np.ndarray[Any, np.dtype[np.float32]]


class Whole:
    """The model of a folder."""

    def __init__(self, folder: Path) -> None:
        self.processor: Any = reference.processor(folder)
        self.model: Any = reference.model(folder)
        self.config = self.model.config
        self.tokenizer = self.processor.tokenizer

    def inputs(self, messages: list[dict[str, Any]], given: Sequence[Given]) -> dict[str, Any]:
        """Of the processor; with what ``generate`` must know of a video's sound."""
        text = self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        arguments = for_processor(given)
        made = dict(self.processor(text=text, return_tensors="pt", **arguments))
        if "video_second_per_grid" in made:
            made["video_second_per_grid"] = torch.as_tensor(made["video_second_per_grid"])
        return made | {"use_audio_in_video": "load_audio_from_video" in arguments}

    def run(
        self, messages: list[dict[str, Any]], given: Sequence[Given], speaker: str, max_tokens: int, frames: int
    ) -> Outcome:
        """At most so many tokens, and so many codec frames."""
        inputs = self.inputs(messages, given)
        kept: dict[str, Any] = {}
        parts = {"thinker": self.model.thinker, "talker": self.model.talker}
        originals = {name: part.generate for name, part in parts.items()}

        def watched(name: str) -> Any:
            def generate(*args: Any, **kwargs: Any) -> Any:
                kept[name] = originals[name](*args, **kwargs)
                return kept[name]

            return generate

        try:
            for name, part in parts.items():
                part.generate = watched(name)
            sequences, wave = self.model.generate(
                **inputs,
                speaker=speaker,
                return_audio=True,
                thinker_do_sample=False,
                thinker_max_new_tokens=max_tokens,
                thinker_eos_token_id=[self.config.im_end_token_id],
                thinker_output_logits=True,
                talker_do_sample=False,
                # The last one is drawn and not made a frame of.
                talker_max_new_tokens=frames + 1,
                talker_output_logits=True,
            )
        finally:
            for part in parts.values():
                del part.generate
        thinker, talker = kept["thinker"], kept["talker"]
        prompt = inputs["input_ids"].shape[1]
        return Outcome(
            prompt=inputs["input_ids"][0].tolist(),
            tokens=sequences[0, prompt:].tolist(),
            logits=torch.cat(thinker.logits),
            states=self._states(sequences[0], thinker.hidden_states),
            codes=torch.cat([codes for *_, codes in talker.hidden_states if codes is not None]),
            talker_logits=torch.cat(talker.logits),
            samples=wave[0, 0].numpy(),
        )

    def _states(self, tokens: torch.Tensor, hidden: Any) -> torch.Tensor:
        """Embeddings of text, and the inner states of features, as the talker takes them."""
        embedded = torch.cat([step[0] for step in hidden], dim=1)[0]
        inner = torch.cat([step[self.config.talker_config.accept_hidden_layer] for step in hidden], dim=1)[0]
        thinker = self.config.thinker_config
        media = torch.tensor([thinker.image_token_id, thinker.video_token_id, thinker.audio_token_id])
        return torch.where(torch.isin(tokens[: len(embedded)], media)[:, None], inner, embedded)
