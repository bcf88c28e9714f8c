"""The decoder stage of a model with audio input: text, and the features of clips, to text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import AutoConfig, GenerationConfig
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from omni_actors.connectors.payload import Payload
from omni_actors.models.common.features import FeatureDecoder, Features
from omni_actors.models.common.layers import Layers, own
from omni_actors.models.common.load import load_part, read_weights
from omni_actors.models.common.multimodal import Medium, check_features, root_of
from omni_actors.models.common.rotary import Rotary
from omni_actors.models.common.text import Text, context_length, eos_ids, sampling_defaults
from omni_actors.protocol.errors import ErrorInfo, OmniError, invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.languages import chosen_language
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import Prompt, Sampling, Transcription
from omni_actors.worker.device import kernels_of
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive.adapter import AutoregressiveAdapter, PromptInput
from omni_actors.worker.engines.autoregressive.options import OPTIONS
from omni_actors.worker.memory import give_memory_back
from omni_actors.worker.tensors import tensor_of

FEATURES = "features"
"""The port on which the encoder's features come."""


@dataclass(slots=True)
class _Request:
    asked: Prompt | Transcription
    media: list[Medium] = field(default_factory=list)
    features: dict[int, torch.Tensor] = field(default_factory=dict)


class AudioConditionedLM(AutoregressiveAdapter):
    """A language model conditioned on audio clips. ``hello.model`` is the checkpoint's folder. Options: those of the
    autoregressive engine.

    A request has a section ``transcription`` and one clip, or a ``prompt`` and any number of clips.
    """

    model_types: ClassVar[frozenset[str]]
    """Kinds of text decoder whose layers :class:`~omni_actors.models.common.layers.Layers` computes as transformers
    does."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._options = filled(OPTIONS, hello.options)
        self._requests: dict[int, _Request] = {}
        self.text: Text
        self.audio_token: int
        self.decoder: FeatureDecoder
        self.sampling_defaults: Mapping[str, Any] = {}

    # ---- a family's own

    @abstractmethod
    def prompt_tokens(self, prompt: Prompt) -> list[int]:
        """Return the prompt of a chat or completion, with one :attr:`audio_token` for each clip, in order. Raises 400
        for a prompt beyond the model's abilities."""

    @abstractmethod
    def transcription_tokens(self, asked: Transcription) -> list[int]:
        """Return the prompt for the transcription of a clip, with one :attr:`audio_token` for the clip. Raises 400 for
        a request beyond the model's abilities."""

    # ---- loading

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        folder = self.hello.model
        assert folder is not None
        progress("loading the tokenizer", None)
        self.text = Text(folder)
        self.vocabulary = self.text.vocabulary
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        text_config = config.text_config
        if text_config.model_type not in self.model_types:
            raise OmniError(ErrorInfo(message=f"its text model is of type '{text_config.model_type}'", status=500))
        try:
            generation = GenerationConfig.from_pretrained(folder, local_files_only=True)
        except OSError:  # without the file: the model's own configuration
            generation = GenerationConfig.from_model_config(config)
        self.eos = eos_ids(generation, config, self.text.tokenizer)
        self.sampling_defaults = sampling_defaults(generation)
        self.audio_token = config.audio_token_id
        self.max_model_len = context_length(text_config.max_position_embeddings, self._options["max_model_len"])
        progress("loading the weights", None)
        self.decoder = self._decoder(folder, text_config)
        give_memory_back()
        return {"architecture": config.architectures[0], "dtype": self.hello.dtype, **self.text.facts}

    def _decoder(self, folder: str, config: Any) -> FeatureDecoder:
        device, dtype = torch.device(self.hello.device), getattr(torch, self.hello.dtype)
        kernels = kernels_of(self.hello)
        prefix = present(folder, "model.language_model.", "language_model.model.", "language_model.")
        model: Any = load_part(MODEL_MAPPING[type(config)], config, folder, prefix, dtype, device)
        head = read_weights(folder, present(folder, "lm_head.", "language_model.lm_head."))
        embeddings = own(model.embed_tokens)
        return FeatureDecoder(
            embeddings,
            Layers(model.layers, config.rms_norm_eps, kernels),
            own(model.norm),
            kernels.linear(head["weight"].to(device, dtype) if head else embeddings.clone(), None),
            Rotary(model.rotary_emb, self.max_model_len, dtype, device),
            config.vocab_size,
        )

    # ---- requests

    def open(self, work: Work) -> PromptInput:
        # A chat with clips brings both: the section of transcriptions is for models that need it written down first.
        asked = work.params.get("prompt") or work.params.get("transcription")
        if not isinstance(asked, Transcription | Prompt):
            raise invalid_request("The request has no prompt.", param="messages")
        request = _Request(asked)
        opened = PromptInput() if FEATURES in work.ports else self._begin(work.key, request)
        self._requests[work.key] = request
        return opened

    def sampling(self, work: Work) -> Sampling:
        asked: Transcription | None = work.params.get("transcription")
        if asked is None or "prompt" in work.params:
            return super().sampling(work)
        return Sampling(temperature=asked.temperature)

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> PromptInput:
        request, decoder = self._requests[key], self.decoder
        if payload is not None:
            medium = Medium.of(payload.meta)
            check_features(payload, medium, decoder.embeddings.shape[1])
            request.media.append(medium)
            request.features[medium.index] = tensor_of(
                payload, "features", device=decoder.device, dtype=decoder.embeddings.dtype
            )
        return self._begin(key, request) if end else PromptInput()

    def _begin(self, key: int, request: _Request) -> PromptInput:
        """Start a request whose whole prompt is known: each placeholder becomes as many tokens as its clip has
        features."""
        asked, media = request.asked, request.media
        if isinstance(asked, Prompt):
            self.text.check_prompt(asked, self.max_model_len)
            media = self._in_order(asked, media)
            tokens = self.prompt_tokens(asked)
        else:
            if len(media) != 1:
                raise invalid_request("One clip is transcribed at a time.", param="file")
            tokens = self.transcription_tokens(asked)
        if tokens.count(self.audio_token) != len(media):
            raise invalid_request("The prompt has a placeholder where there is no clip.", param="messages")
        expanded: list[int] = []
        remaining = iter(media)
        for token in tokens:
            expanded += [token] * (next(remaining).tokens if token == self.audio_token else 1)
        if media:
            places = np.flatnonzero(np.asarray(expanded) == self.audio_token)
            features = torch.cat([request.features[medium.index] for medium in media])
            self.decoder.requests[key] = Features(places, features)
        request.features = {}
        continued = isinstance(asked, Prompt) and asked.messages is None
        most = None if isinstance(asked, Prompt) else asked.max_tokens
        if most is not None:  # as many as the context leaves; the engine refuses a request with none left
            most = max(1, min(most, self.max_model_len - len(expanded)))
        return PromptInput(expanded, root=root_of(media), continued=continued, complete=True, max_tokens=most)

    def _in_order(self, prompt: Prompt, media: Sequence[Medium]) -> list[Medium]:
        """Return the prompt's clips in the order of the prompt. Raises 400 when the prompt does not name each clip
        once."""
        by_index = {medium.index: medium for medium in media}
        found: list[Medium] = []
        for message in prompt.messages or ():
            content = message.get("content")
            for part in content if isinstance(content, list) else ():
                if part.get("type") == "text":
                    continue
                medium = by_index.get(part.get("index", -1)) if part.get("type") == "audio" else None
                if medium is None:
                    kind = part.get("type")
                    raise invalid_request(f"This model takes no content part of type {kind!r}.", param="messages")
                found.append(medium)
        if len(found) != len(media):
            raise invalid_request("The messages do not name each clip once.", param="messages")
        return found

    def close(self, key: int) -> None:
        self._requests.pop(key, None)
        self.decoder.requests.pop(key, None)


def present(folder: str, *prefixes: str) -> str:
    """Return the first of these beginnings of names for which the checkpoint has weights, else the first: some
    checkpoints were published before their classes were regrouped."""
    return next((prefix for prefix in prefixes if read_weights(folder, prefix)), prefixes[0])


def check_transcription(asked: Transcription, languages: Collection[str]) -> str | None:
    """Return the requested language's code among `languages`, ``None`` for automatic detection. Raises 400 for requests
    beyond these models: they write a transcript in the spoken language, without times."""
    if asked.task != "transcribe":
        raise invalid_request("This model transcribes; it does not translate.", param="task")
    if asked.timestamps != "none":
        raise invalid_request(
            "This model tells no times: ask for response_format 'json' or 'text'.", param="response_format"
        )
    return chosen_language(asked.language, languages)
