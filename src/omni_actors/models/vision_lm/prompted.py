"""Prompts of a vision-language folder with a network, encoders included, that another engine runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import AutoConfig

from omni_actors.connectors.payload import Payload
from omni_actors.models.causal_lm.prompted import PromptedLM
from omni_actors.models.vision_lm.prompts import PicturedPrompts
from omni_actors.protocol.errors import invalid_request
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive.adapter import PromptInput


class PromptedVLM(PromptedLM):
    """``hello.model`` is the folder. Loads no weights."""

    prompts = PicturedPrompts

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        loaded = super().load(progress)
        config = AutoConfig.from_pretrained(self.hello.model, local_files_only=True)
        names = ("image_token_id", "image_token_index")
        self._mark = next((mark for name in names if (mark := getattr(config, name, None)) is not None), None)
        return loaded

    def open(self, work: Work) -> PromptInput:
        return self._checked(super().open(work))

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> PromptInput:
        return self._checked(super().feed(key, port, payload, end))

    def _checked(self, prompt: PromptInput) -> PromptInput:
        """Return the prompt, if each image mark belongs to an image: a client's text may hold marks too."""
        images = len(prompt.media.get("image", ()))
        marks = images if self._mark is None else prompt.tokens.count(self._mark)
        if marks != images:
            raise invalid_request(f"The prompt has {marks} marks of images, and {images} images.", param="messages")
        return prompt
