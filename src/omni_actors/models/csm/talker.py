"""The talker: a backbone reads the conversation and generates each frame's first code, and a small decoder generates
the frame's other codes one after the other.

A prompt is a conversation whose roles are speakers' numbers. Reference clips are turns before the one to speak, each
with its text and its sound.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import CsmForConditionalGeneration, CsmProcessor, DynamicCache

from omni_actors.models.common import speech
from omni_actors.models.common.speech import Codes, Frames, Utterance, choosing, load_model, most_frames
from omni_actors.models.csm.pipeline import PIPELINE
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.request import Usage
from omni_actors.worker.device import kernels_of


class Talker(speech.Talker):
    frames = "codes"
    languages = PIPELINE.languages

    def start(self, folder: Path) -> dict[str, Any]:
        self._processor = CsmProcessor.from_pretrained(folder, local_files_only=True)
        self.keep_marks(self._processor.tokenizer)
        self._rate = self._processor.feature_extractor.sampling_rate
        self._model = model = load_model(CsmForConditionalGeneration, self.hello)
        model.codec_model.decoder = None  # the codec stage has its own
        model.codec_model.float()  # a clip is float32, and what is heard in it are codes
        self.know_clips(model.codec_model)
        self._recommended = speech.recommended(model.generation_config)
        self._depth_recommended = speech.recommended(model.depth_decoder.generation_config)
        self._codes = model.config.codec_config.codebook_size
        return {"speakers": [str(n) for n in range(10)]}

    def check(self, utterance: Utterance) -> None:
        speaker = utterance.speech.voice
        if speaker != "default" and not speaker.isdecimal():
            raise invalid_request(f"A voice is a speaker's number, not {speaker!r}.", param="voice")
        if utterance.speech.reference and not utterance.speech.ref_text:
            raise invalid_request("This model must know what is said in the reference.", param="ref_text")

    @torch.inference_mode()
    def speak(self, utterance: Utterance) -> Iterator[Frames | Usage]:
        model, options, kernels = self._model, self.hello.options, kernels_of(self.hello)
        inputs = self._prompt(utterance)
        length = inputs["input_ids"].shape[1]
        yield Usage(prompt_tokens=length)
        room = model.config.max_position_embeddings - length
        most = most_frames(utterance.speech, options, self._recommended.get("max_new_tokens"), room)
        first = Codes(choosing(utterance.speech, options, self._recommended), "talker", kernels)
        others = Codes(choosing(utterance.speech, options, self._depth_recommended), "talker.depth", kernels)
        cache = DynamicCache(config=model.config)
        embeds = model._merge_input_ids_with_input_values(
            inputs["input_ids"], inputs.get("input_values"), inputs.get("input_values_cutoffs")
        )["inputs_embeds"]
        eos = model.config.codebook_eos_token_id
        for _ in range(most):
            hidden = model.backbone_model(inputs_embeds=embeds, past_key_values=cache, use_cache=True)[0][:, -1]
            frame = self._frame(hidden, first, others)
            if all(code == eos for code in frame):
                return
            yield np.asarray([frame], np.int64)
            if all(code == eos for code in frame[:-1]):
                return
            embeds = model.backbone_model.embed_tokens(torch.tensor([[frame]], device=model.device))

    def _frame(self, hidden: torch.Tensor, first: Codes, others: Codes) -> list[int]:
        """One frame's codes, by the backbone's last hidden state [1, width]."""
        model = self._model
        frame = [first.choose(model.lm_head(hidden)[0, : self._codes])]
        cache = DynamicCache(config=model.depth_decoder.config)
        known = torch.tensor([[0, frame[0]]], device=hidden.device)  # the place of 0 is the hidden state's
        while True:
            logits = model.depth_decoder(
                input_ids=known,
                backbone_last_hidden_state=hidden if len(frame) == 1 else None,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits
            frame.append(others.choose(logits[0, -1, : self._codes]))
            if len(frame) == model.config.num_codebooks:
                return frame
            known = torch.tensor([[frame[-1]]], device=hidden.device)

    def _prompt(self, utterance: Utterance) -> dict[str, Any]:
        speaker = "0" if utterance.speech.voice == "default" else utterance.speech.voice
        turns: list[dict[str, Any]] = []
        if utterance.references:
            samples = np.concatenate([clip.at(self._rate) for clip in utterance.references])
            content = [{"type": "text", "text": utterance.speech.ref_text}, {"type": "audio", "audio": samples}]
            turns.append({"role": speaker, "content": content})
        turns.append({"role": speaker, "content": [{"type": "text", "text": utterance.text}]})
        inputs = self._processor.apply_chat_template(turns, tokenize=True, return_dict=True)
        return {name: value.to(self.hello.device) for name, value in inputs.items()}
