"""The codec stage: a clip to Mimi's codes, window by window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import soxr
import torch
from transformers import AutoConfig, AutoFeatureExtractor, DynamicCache, MimiModel
from transformers.models.mimi.modeling_mimi import MimiConv1dPaddingCache

from omni_actors.connectors.payload import Payload
from omni_actors.models.common.load import load_part
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.request import Usage
from omni_actors.worker.checks import TensorSpec
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot.adapter import GenerationAdapter
from omni_actors.worker.engines.oneshot.outputs import Piece, Result
from omni_actors.worker.memory import give_memory_back
from omni_actors.worker.tensors import tensor_payload


@dataclass(frozen=True, slots=True)
class Clip:
    """An item: a clip as float32 [n] at the codec's rate, surrounded by the silence that the model needs. ``seconds``
    is the clip's own length."""

    samples: np.ndarray[Any, np.dtype[np.float32]]
    seconds: float


class Encoder(GenerationAdapter[Work, Clip]):
    """Port ``audio`` takes a clip (kind ``pcm``). Emits payloads of kind ``codes``: the tensor ``codes`` int64 [frames,
    codebooks], one payload per window. ``frames`` in the metadata is how many the model reads in all."""

    tensors = {"codes": {"codes": TensorSpec("int64", (None, None))}}

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._max_seconds = float(hello.options["max_seconds"])
        self._window = int(hello.options["window_frames"])

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        torch.set_num_threads(self.hello.threads)
        folder = self.hello.model
        assert folder is not None
        progress("loading the weights", None)
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        self._extractor = AutoFeatureExtractor.from_pretrained(folder, local_files_only=True)
        device = torch.device(self.hello.device)
        self._codec = load_part(MimiModel, config.codec_config, folder, "codec_model.", torch.float32, device)
        self._codebooks = config.num_codebooks
        self._frame = config.codec_config.frame_size
        give_memory_back()
        return {"sample_rate": self._extractor.sampling_rate, "dtype": "float32"}

    def open(self, work: Work) -> tuple[Work, Sequence[Clip]]:
        return work, ()

    def feed(self, state: Work, port: str, payload: Payload | None, end: bool) -> Sequence[Clip]:
        if payload is None:
            return ()
        samples, rate = payload.tensors["samples"], payload.meta["sample_rate"]
        seconds = len(samples) / rate
        if seconds > self._max_seconds:
            message = f"The clip is {seconds:.0f} s long; at most {self._max_seconds:.0f} s are allowed."
            raise invalid_request(message, param="file")
        own = self._extractor.sampling_rate
        samples = np.asarray(samples if rate == own else soxr.resample(samples, rate, own), np.float32)
        made = self._extractor(samples, sampling_rate=own, return_tensors="np")["input_values"]
        return (Clip(np.ascontiguousarray(made[0, 0], np.float32), seconds),)

    def run(self, items: Sequence[Clip]) -> Sequence[Result | OmniError]:
        return [Result(self._pieces(clip), Usage(audio_input_s=clip.seconds)) for clip in items]

    def _pieces(self, clip: Clip) -> Iterator[Piece]:
        codec, span = self._codec, self._window * self._frame
        frames = len(clip.samples) // self._frame  # what is left is silence, and the model reads no part of a frame
        samples = torch.from_numpy(clip.samples[: frames * self._frame]).to(codec.device)
        cache, padding = DynamicCache(config=codec.config), padding_cache(codec)
        meta = {"frames": frames}
        for start in range(0, len(samples), span):
            with torch.inference_mode():
                made = codec.encode(
                    samples[None, None, start : start + span],
                    num_quantizers=self._codebooks,
                    encoder_past_key_values=cache,
                    padding_cache=padding,
                )
            yield Piece(tensor_payload("codes", meta, {"codes": made.audio_codes[0].T.contiguous()}))


def padding_cache(codec: MimiModel) -> MimiConv1dPaddingCache:
    """Make the cache of the encoder's convolutions between one window and the next."""
    encoder: Any = codec.encoder
    seanet = encoder.encoder_seanet
    layers: list[Any] = [*map(seanet.get_submodule, seanet._conv1d_layer_names), encoder.downsample]
    return MimiConv1dPaddingCache(
        num_layers=len(layers),
        per_layer_padding=[layer.padding_total for layer in layers],
        per_layer_padding_mode=[layer.pad_mode for layer in layers],
        per_layer_in_channels=[layer.in_channels for layer in layers],
    )
