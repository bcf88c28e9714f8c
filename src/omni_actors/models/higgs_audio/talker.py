"""The talker: a language model reads a conversation and generates rows of codes.

Codebook ``c`` of frame ``f`` is in row ``1 + f + c``; row 0 and the places before a codebook's first frame hold the
stream's beginning mark. Any codebook may end; the other codebooks follow, one a row. While generating, the model reads
its own rows only.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, HiggsAudioV2ForConditionalGeneration, HiggsAudioV2Processor
from transformers.models.higgs_audio_v2.generation_higgs_audio_v2 import HiggsAudioV2DelayPatternLogitsProcessor

from omni_actors.models.common import speech
from omni_actors.models.common.processors import audio_tokenizer_folder, load_processor
from omni_actors.models.common.speech import Codes, Frames, Utterance, choosing, load_model, most_frames
from omni_actors.platforms.runtime.kernels import Kernels
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import Speech
from omni_actors.protocol.request import Usage
from omni_actors.worker.device import kernels_of


class Talker(speech.Talker):
    frames = "codes"

    def start(self, folder: Path) -> dict[str, Any]:
        # The class of the codec, which reads reference clips, cannot be imported without torchaudio.
        self._clones = find_spec("torchaudio") is not None
        codec = None
        if self._clones:
            from transformers import HiggsAudioV2TokenizerModel

            codec = load_model(HiggsAudioV2TokenizerModel, self.hello, audio_tokenizer_folder(folder))
            codec.float()  # a clip is float32, and what is heard in it are codes
        if codec is not None:
            self.know_clips(codec)
        self._processor = load_processor(HiggsAudioV2Processor, folder, codec)
        self.keep_marks(self._processor.tokenizer)
        self._rate = self._processor.feature_extractor.sampling_rate
        self._model = load_model(HiggsAudioV2ForConditionalGeneration, self.hello)
        self._recommended = speech.recommended(self._model.generation_config)
        return {"cloning": self._clones}

    def check(self, utterance: Utterance) -> None:
        if not utterance.speech.reference:
            return
        if not self._clones:
            raise invalid_request("Speaking after a clip needs torchaudio, which is not installed here.", "ref_audio")
        if not utterance.speech.ref_text:
            raise invalid_request("This model must know what is said in the reference.", param="ref_text")

    @torch.inference_mode()
    def speak(self, utterance: Utterance) -> Iterator[Frames | Usage]:
        model, config = self._model, self._model.config
        inputs = self._prompt(utterance)
        ids = inputs["input_ids"]
        yield Usage(prompt_tokens=ids.shape[1])
        count = config.num_codebooks
        room = config.max_position_embeddings - ids.shape[1] - count
        recommended = self._recommended.get("max_new_tokens")
        most = most_frames(utterance.speech, self.hello.options, recommended and recommended - count, room)
        choice = _Choice(utterance.speech, self.hello.options, self._recommended, config, kernels_of(self.hello))
        cache = DynamicCache(config=config)
        rows: list[list[int]] = inputs["audio_input_ids"][0].tolist() if "audio_input_ids" in inputs else []
        begin = len(rows)
        while len(rows) - begin < most + count:
            logits = model(**inputs, past_key_values=cache, use_cache=True).logits[:, -1]
            row = choice.choose(ids, logits, rows)
            rows.append(row)
            ended = [code == config.audio_stream_eos_id for code in row]
            if all(ended):
                return
            frame = len(rows) - 1 - count
            if frame >= begin:
                codes = [min(rows[frame + 1 + c][c], config.audio_stream_bos_id - 1) for c in range(count)]
                yield np.asarray([codes], np.int64)
            mark = config.audio_delay_token_id
            if not any(ended) and int(ids[0, -1]) != mark:
                mark = config.audio_token_id
            ids = torch.cat([ids, ids.new_tensor([[mark]])], dim=1)
            inputs = {"audio_input_ids": torch.tensor([[row]], device=model.device)}

    def _prompt(self, utterance: Utterance) -> dict[str, torch.Tensor]:
        options, asked = self.hello.options, utterance.speech
        turns: list[dict[str, Any]] = [_text("system", options["system"])]
        turns.append(_text("scene", asked.instructions or options["scene"]))
        if utterance.references:
            samples = np.concatenate([clip.at(self._rate) for clip in utterance.references])
            turns.append(_text("user", asked.ref_text or ""))
            turns.append({"role": "assistant", "content": [{"type": "audio", "audio": samples}]})
        turns.append(_text("user", utterance.text))
        made = self._processor.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        ).to(self.hello.device)
        names = ("input_ids", "audio_input_ids", "audio_input_ids_mask")
        return {name: made[name] for name in names if name in made}


def _text(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}


class _Choice:
    """The choice of rows: marks at their fixed places, draws elsewhere, and another draw for a code that repeats."""

    def __init__(self, asked: Speech, options: Any, recommended: Any, config: Any, kernels: Kernels) -> None:
        count = config.num_codebooks
        self._config = config
        self._marks = HiggsAudioV2DelayPatternLogitsProcessor(
            delay_pattern=[1 + codebook for codebook in range(count)],
            audio_bos_token_id=config.audio_bos_token_id,
            audio_eos_token_id=config.audio_delay_token_id,
            audio_stream_bos_id=config.audio_stream_bos_id,
            audio_stream_eos_id=config.audio_stream_eos_id,
            num_codebooks=count,
            codebook_size=config.codebook_size,
        )
        self._codes = Codes(choosing(asked, options, recommended), "talker", kernels, count)
        # Codes that repeat are drawn anew, as the model says them, without a temperature.
        self._again = Codes(choosing(Speech(seed=asked.seed, temperature=1.0), {}, {}), "talker.again", kernels, count)
        self._window: int | None = recommended.get("ras_win_len")
        self._repeats: int | None = recommended.get("ras_win_max_num_repeat")

    def choose(self, ids: torch.Tensor, logits: torch.Tensor, rows: list[list[int]]) -> list[int]:
        """Choose the row behind ``rows`` by logits [1, codebooks * codes]; ``ids`` [1, n] are the text and its
        marks."""
        row = self._codes.choose_rows(self._marks(ids, logits.to(torch.float32)))
        if self._window is None or self._repeats is None or not rows:
            return row
        window = rows[-self._window :]
        marks = (self._config.audio_stream_bos_id, self._config.audio_stream_eos_id)
        repeated = [
            code not in marks and sum(before[codebook] == code for before in window) >= self._repeats
            for codebook, code in enumerate(row)
        ]
        if not any(repeated):
            return row
        again = self._again.choose_rows(logits.reshape(len(row), -1))
        return [other if repeats else code for code, other, repeats in zip(row, again, repeated, strict=True)]
