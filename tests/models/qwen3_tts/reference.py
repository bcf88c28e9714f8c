"""What the family's own code says: the package's ``generate``, and the codec's own decoding, on a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedModel

from omni_actors.models.qwen3_tts.codec_model import CodecEncoder, load_decoder
from omni_actors.models.qwen3_tts.package import config_of, package, quiet

GREEDY: dict[str, Any] = {"do_sample": False, "subtalker_dosample": False, "repetition_penalty": 1.0}


@dataclass(frozen=True)
class Clip:
    """A voice to clone: samples float32 [n] at 24 kHz, and what they say (``None``: the voice's timbre alone)."""

    samples: np.ndarray[Any, Any]
    text: str | None


@dataclass
class Trace:
    """Of each step: the talker's last normed hidden state [width], and the logits of the first codes [vocabulary]."""

    hidden: list[torch.Tensor] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)


class Reference:
    """The package's model of a folder, float32 on the CPU."""

    def __init__(self, folder: Path) -> None:
        parts = package()
        config = config_of(folder)
        # Not the class's own from_pretrained: that loads the codec by the package's inference code.
        load = PreTrainedModel.from_pretrained.__func__
        self.model = load(parts.model, folder, config=config, dtype=torch.float32)
        parts.prepare(self.model)
        self.model.eval()
        with quiet():
            self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.decoder = load_decoder(folder / "speech_tokenizer", "cpu")
        self.encoder = CodecEncoder(folder / "speech_tokenizer", "cpu")

    def _ids(self, text: str) -> torch.Tensor:
        ids: torch.Tensor = self.tokenizer(text, return_tensors="pt")["input_ids"]
        return ids

    @contextmanager
    def traced(self) -> Iterator[Trace]:
        """What the talker's head reads and says in the block."""
        trace = Trace()

        def keep(module: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            trace.hidden.append(inputs[0][0, -1].clone())
            trace.logits.append(output[0, -1].clone())

        handle = self.model.talker.codec_head.register_forward_hook(keep)
        try:
            yield trace
        finally:
            handle.remove()

    def codes(
        self,
        text: str,
        *,
        voice: str | None = None,
        language: str = "auto",
        instructions: str | None = None,
        clip: Clip | None = None,
        non_streaming: bool | None = None,
        frames: int = 16,
        **settings: Any,
    ) -> torch.Tensor:
        """int64 [frames, groups]; at most ``frames`` of them. As the package's ``generate_…`` functions call it."""
        prompt = None
        if clip is not None:
            timbre = clip.text is None
            prompt = {
                "ref_code": [None if timbre else self.encoder.encode(clip.samples)],
                "ref_spk_embedding": [self.model.extract_speaker_embedding(clip.samples, 24000)],
                "x_vector_only_mode": [timbre],
                "icl_mode": [not timbre],
            }
        instructed = [self._ids(f"<|im_start|>user\n{instructions}<|im_end|>\n")] if instructions else None
        spoken = None if clip is None else clip.text
        codes, _ = self.model.generate(
            input_ids=[self._ids(f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n")],
            instruct_ids=instructed,
            ref_ids=None if spoken is None else [self._ids(f"<|im_start|>assistant\n{spoken}<|im_end|>\n")],
            voice_clone_prompt=prompt,
            languages=[language],
            speakers=[voice],
            non_streaming_mode=(clip is None) if non_streaming is None else non_streaming,
            max_new_tokens=frames + 1,  # the last token's frame is never completed
            **(GREEDY | settings),
        )
        found: torch.Tensor = codes[0]
        return found

    @torch.inference_mode()
    def sound(self, codes: torch.Tensor, clip: Clip | None = None) -> np.ndarray[Any, Any]:
        """float32 [frames * 1920], as the codec's ``decode``; behind a clip's own frames where it is gone on from."""
        before = codes[:0]
        if clip is not None and clip.text is not None:
            before = self.encoder.encode(clip.samples)
        samples = self.decoder.chunked_decode(torch.cat([before, codes]).T[None])[0, 0]
        behind: np.ndarray[Any, Any] = samples[len(before) * 1920 :].numpy()
        return behind


@cache
def reference(folder: Path) -> Reference:
    return Reference(folder)
