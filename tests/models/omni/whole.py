"""transformers' omni models, whole and greedy: what their parts hand to one another, and what comes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    depth_gaps: list[float] = field(default_factory=list)
    """For each frame the smallest difference between the two best logits of its further codes; empty for a talker
    without a code predictor."""

    def tied_frame(self, tie: float) -> int | None:
        """Return the first frame one of whose further codes is decided by rounding; ``None`` if there is none. What
        follows that frame cannot be compared."""
        return next((frame for frame, gap in enumerate(self.depth_gaps[: len(self.codes)]) if gap < tie), None)


class Whole(ABC):
    """The model of a folder. A family says what ``generate`` must be told, and where what it made is found."""

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
        with self._watched() as kept:
            sequences, wave = self.generate(
                inputs,
                frames,
                speaker=speaker,
                thinker_do_sample=False,
                thinker_max_new_tokens=max_tokens,
                talker_do_sample=False,
            )
        thinker, talker = kept["thinker"], kept["talker"]
        prompt = inputs["input_ids"].shape[1]
        return Outcome(
            prompt=inputs["input_ids"][0].tolist(),
            tokens=sequences[0, prompt:].tolist(),
            logits=torch.cat(thinker.logits),
            states=self.states(sequences[0], thinker.hidden_states),
            codes=self.codes(talker),
            talker_logits=torch.cat(talker.logits),
            samples=wave.flatten().numpy(),
            depth_gaps=kept.get("depth_gaps", []),
        )

    @abstractmethod
    def generate(self, inputs: Mapping[str, Any], frames: int, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The sequences and the wave of the model's own ``generate``."""

    @abstractmethod
    def states(self, tokens: torch.Tensor, hidden: Any) -> torch.Tensor:
        """Of the thinker's hidden states, by step and layer: what the talker is given of each token."""

    @abstractmethod
    def codes(self, talker: Any) -> torch.Tensor:
        """The frames of what the talker's ``generate`` made."""

    def is_media(self, tokens: torch.Tensor) -> torch.Tensor:
        """Which of the tokens stand for features."""
        names = (f"{it}_token" for it in ("image", "video", "audio"))
        ids = self.tokenizer.convert_tokens_to_ids([getattr(self.tokenizer, name) for name in names])
        return torch.isin(tokens, torch.tensor(ids))

    @contextmanager
    def _watched(self) -> Iterator[dict[str, Any]]:
        """What the ``generate`` of thinker and talker make, logits too, by part."""
        kept: dict[str, Any] = {}
        parts = {"thinker": self.model.thinker, "talker": self.model.talker}

        def watched(name: str, generate: Any) -> Any:
            def watching(*args: Any, return_dict_in_generate: bool = False, **kwargs: Any) -> Any:
                made = kept[name] = generate(*args, return_dict_in_generate=True, output_logits=True, **kwargs)
                return made if return_dict_in_generate else made.sequences

            return watching

        predictor = getattr(self.model.talker, "code_predictor", None)

        def watched_predictor(generate: Any) -> Any:
            def watching(*args: Any, **kwargs: Any) -> Any:
                made = generate(*args, output_logits=True, **kwargs)
                best = torch.cat(made.logits).topk(2).values
                kept.setdefault("depth_gaps", []).append(float((best[:, 0] - best[:, 1]).min()))
                return made

            return watching

        try:
            for name, part in parts.items():
                part.generate = watched(name, part.generate)
            if predictor is not None:
                predictor.generate = watched_predictor(predictor.generate)
            yield kept
        finally:
            for part in (*parts.values(), *([] if predictor is None else [predictor])):
                del part.generate
