"""The decoder: at each step one token of text and the codes of one frame go in, and the next token comes out.

A step's input is the sum of the embeddings of the text token before it and of the codes of the frame before it. The
codes come from the encoder while text is already written. The text is mostly padding: a word's tokens come some frames
after its sound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec.structs
import torch
import torch.nn.functional as F
from transformers import AutoConfig, GenerationConfig
from transformers.models.kyutai_speech_to_text.modeling_kyutai_speech_to_text import KyutaiSpeechToTextModel

from omni_actors.connectors.payload import Payload
from omni_actors.models.common.audio_conditioned_lm import check_transcription
from omni_actors.models.common.layers import Layers, own
from omni_actors.models.common.load import load_part, read_weights
from omni_actors.models.common.rotary import Rotary
from omni_actors.models.common.text import Text, context_length, sampling_defaults
from omni_actors.models.kyutai_stt.pipeline import PIPELINE
from omni_actors.platforms.runtime.kernels import Linear
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.frames import Hello, Prefix
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import Sampling, Transcription
from omni_actors.protocol.request import TextDelta
from omni_actors.worker.checks import TensorSpec, check_input
from omni_actors.worker.device import kernels_of
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive.adapter import AutoregressiveAdapter, PromptInput, SampledToken
from omni_actors.worker.engines.autoregressive.decoder import Attention, StepInputs, StepOutput
from omni_actors.worker.engines.autoregressive.options import OPTIONS
from omni_actors.worker.memory import give_memory_back
from omni_actors.worker.tensors import tensor_of


class FrameDecoder:
    """Implements :class:`~omni_actors.worker.engines.autoregressive.decoder.CapturableDecoder`. ``heard`` holds, by
    request, what is added to the text's embedding at each position: [positions, width]."""

    def __init__(
        self, embeddings: torch.Tensor, layers: Layers, norm: torch.Tensor, head: Linear, rotary: Rotary
    ) -> None:
        self.device = embeddings.device
        self.vocab_size = len(embeddings)
        self.kv_shape = layers.kv_shape()
        self.heard: dict[int, torch.Tensor] = {}
        self._embeddings = embeddings
        self._layers = layers
        self._norm = norm
        self._head = head
        self._rotary = rotary

    def forward(self, inputs: StepInputs, attention: Attention) -> StepOutput:
        return self.compute(self.prepare(inputs), inputs.rows, attention)

    def prepare(self, inputs: StepInputs) -> tuple[torch.Tensor, ...]:
        x = F.embedding(inputs.tokens, self._embeddings)
        for span in inputs.spans:
            if (heard := self.heard.get(span.key)) is not None:
                x[span.at : span.at + span.count] += heard[span.start : span.start + span.count]
        return x, *self._rotary.at(inputs.positions)

    def compute(
        self, prepared: tuple[torch.Tensor, ...], rows: torch.Tensor | None, attention: Attention
    ) -> StepOutput:
        x, cos, sin = prepared
        x = self._layers(x, cos, sin, attention)
        x = x if rows is None else x.index_select(0, rows)
        x = torch.rms_norm(x, (x.shape[1],), self._norm, self._layers.eps)
        return StepOutput(self._head(x))


@dataclass(slots=True)
class _Request:
    """The state of one request. ``max_tokens`` is the largest number of tokens asked for, ``cut`` says that the clip
    has more. ``known`` counts the positions with received codes, ``computed`` the positions already used as a step's
    input."""

    max_tokens: int | None
    cut: bool = False
    known: int = 0
    computed: int = 0


class Decoder(AutoregressiveAdapter):
    """The decoder stage's engine. ``hello.model`` is the checkpoint's folder; options are the autoregressive
    engine's."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._options = filled(OPTIONS, hello.options)
        self._requests: dict[int, _Request] = {}
        self.decoder: FrameDecoder

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        folder = self.hello.model
        assert folder is not None
        progress("loading the tokenizer", None)
        text = Text(folder)
        self.vocabulary = text.vocabulary
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        generation = GenerationConfig.from_pretrained(folder, local_files_only=True)
        # The model has no end of its own: an answer is over when its clip is.
        self.eos = frozenset()
        self.sampling_defaults = sampling_defaults(generation)
        self.max_model_len = context_length(None, self._options["max_model_len"])
        self._bos = int(config.bos_token_id if generation.bos_token_id is None else generation.bos_token_id)
        progress("loading the weights", None)
        self._build(folder, config)
        give_memory_back()
        return {"architecture": config.architectures[0], "dtype": self.hello.dtype, "chat": False}

    def _build(self, folder: str, config: Any) -> None:
        device, dtype = torch.device(self.hello.device), getattr(torch, self.hello.dtype)
        kernels = kernels_of(self.hello)
        model: Any = load_part(KyutaiSpeechToTextModel, config, folder, "model.", dtype, device)
        table = own(model.embed_tokens.embed_tokens)
        text = table[: config.vocab_size].clone()
        self._offsets = model.embed_tokens.audio_tokens_offsets[1:].clone()
        self._codes, self._codebook = table, int(config.codebook_vocab_size)
        self._begin = torch.full((1, config.num_codebooks), config.audio_bos_token_id, device=device)
        head = read_weights(folder, "lm_head.")
        self.decoder = FrameDecoder(
            text,
            Layers([_llama(layer, config.sliding_window) for layer in model.layers], config.rms_norm_eps, kernels),
            own(model.norm),
            kernels.linear(head["weight"].to(device, dtype) if head else text.clone(), None),
            Rotary(model.layers[0].self_attn.rotary_emb, self.max_model_len, dtype, device),
        )

    # ---- requests

    def open(self, work: Work) -> PromptInput:
        asked = work.params.get("transcription")
        if not isinstance(asked, Transcription):
            raise invalid_request("There is nothing to transcribe.", param="file")
        if asked.prompt:
            raise invalid_request("This model takes no prompt.", param="prompt")
        check_transcription(asked, PIPELINE.languages)
        self._requests[work.key] = _Request(asked.max_tokens)
        return PromptInput()

    def sampling(self, work: Work) -> Sampling:
        asked = work.params.get("transcription")
        return Sampling(temperature=asked.temperature if isinstance(asked, Transcription) else 0.0)

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> PromptInput:
        request, heard = self._requests[key], self.decoder.heard
        if payload is None:
            if not request.known:
                raise invalid_request("There is no clip.", param="file")
            return PromptInput()
        check_input(payload, {"codes": TensorSpec("int64", (None, self._begin.shape[1]), 0, self._codebook)})
        codes = tensor_of(payload, "codes", device=self.decoder.device)
        if request.known:
            self._hear(key, codes)
            return PromptInput()
        frames: int = payload.meta["frames"]
        heard[key] = self._codes.new_zeros(frames, self._codes.shape[1])
        self._hear(key, torch.cat([self._begin, codes]))
        most = frames if request.max_tokens is None else min(frames, request.max_tokens)
        request.cut = most < frames
        # What was heard is not among the prompt's tokens, and no two clips are the same.
        return PromptInput([self._bos], reuse=False, complete=True, max_tokens=most)

    def _hear(self, key: int, codes: torch.Tensor) -> None:
        """Codes of the next positions; of the last frame nobody reads."""
        request, heard = self._requests[key], self.decoder.heard[key]
        rows = self._embedded(codes)[: len(heard) - request.known]
        heard[request.known : request.known + len(rows)] = rows
        request.known += len(rows)

    def ready(self, key: int) -> bool:
        request = self._requests[key]
        return request.computed < request.known

    def sampled(self, drawn: Sequence[SampledToken], output: StepOutput) -> None:
        for token in drawn:
            self._requests[token.key].computed = token.position + 1

    def restore(self, key: int, prefix: Prefix) -> None:
        self._requests[key].computed = len(prefix.tokens[0])

    def shown(self, delta: TextDelta) -> TextDelta:
        """The clip's end is the answer's own end: only an asked limit before it cuts something off."""
        if delta.finish_reason == "length" and not self._requests[delta.key].cut:
            return msgspec.structs.replace(delta, finish_reason="stop")
        return delta

    @torch.inference_mode()
    def _embedded(self, codes: torch.Tensor) -> torch.Tensor:
        """The sum of a frame's codes' embeddings: [frames, width]."""
        return F.embedding(codes + self._offsets, self._codes).sum(1)

    def close(self, key: int) -> None:
        self._requests.pop(key, None)
        self.decoder.heard.pop(key, None)


def _llama(layer: Any, window: int) -> Any:
    """Return the layer's weights under the names of Llama's weights, for :class:`Layers`."""
    attention, mlp = layer.self_attn, layer.mlp
    gate, up = mlp.fc1.weight.chunk(2)
    return SimpleNamespace(
        input_layernorm=layer.input_layernorm,
        post_attention_layernorm=layer.post_attention_layernorm,
        self_attn=SimpleNamespace(
            head_dim=attention.head_dim,
            scaling=attention.scaling,
            sliding_window=window,
            q_proj=attention.q_proj.linear,
            k_proj=attention.k_proj.linear,
            v_proj=attention.v_proj.linear,
            o_proj=attention.o_proj.linear,
        ),
        mlp=SimpleNamespace(
            gate_proj=SimpleNamespace(weight=gate, bias=None),
            up_proj=SimpleNamespace(weight=up, bias=None),
            down_proj=mlp.fc2,
        ),
    )
