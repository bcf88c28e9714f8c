"""Qwen3-ASR's decoder: its prompts, and the language that it names before the transcript."""

from __future__ import annotations

from typing import Any

from omni_actors.models.causal_lm.prompts import render
from omni_actors.models.common.listener import Listener, check_transcription
from omni_actors.models.qwen3_asr.languages import LANGUAGES
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import Prompt, Transcription

MARK = "<asr_text>"
"""The transcript begins behind it; before it stands ``language NAME``."""


class Decoder(Listener):
    model_types = frozenset({"qwen3"})

    def prompt_tokens(self, prompt: Prompt) -> list[int]:
        raise invalid_request("This model only transcribes.", param="messages")

    def transcription_tokens(self, asked: Transcription) -> list[int]:
        """The asked prompt is the system message; a known language is the beginning of the answer. These are the
        prompts of transformers' ``Qwen3ASRProcessor.apply_transcription_request``."""
        code = check_transcription(asked, LANGUAGES)
        context = asked.prompt or ""
        self.text.check_length(context, self.max_model_len, "prompt")
        said = "" if code is None else f"language {LANGUAGES[code]}{MARK}"
        messages: list[dict[str, Any]] = [{"role": "system", "content": [{"type": "text", "text": context}]}]
        messages.append({"role": "user", "content": [{"type": "audio", "audio": ""}]})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": said}]})
        prompt = Prompt(messages=messages, continue_final_message=True)
        tokens: list[int] = self.text.tokenizer.encode(
            render(self.text.tokenizer, prompt, messages), add_special_tokens=False
        )
        return tokens
