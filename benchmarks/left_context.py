"""The cost of decoding codec frames by windows, with less left context than the frames depend on (Qwen3-Omni's
code2wav).

    python benchmarks/left_context.py [--quick] [--json FILE]

Pieces of 25 frames, each decoded with a number of frames before it, or (``remembered``) each frame once, against the
whole in one go: signal to noise in dB, the largest difference of full scale, and the time per second of sound on one
thread, with pieces of 25 frames and of 4. Two networks of random weights: the tiny checkpoint's, and a narrow one of
the published geometry (as many layers, windows, kernels and rates; thinner). The part of a voice that lies in the
missing context depends on trained weights: only a released checkpoint gives such figures.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import Qwen3OmniMoeConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav
from transformers.utils import logging

from omni_actors.connectors.payload import Payload
from omni_actors.models.qwen3_omni.code2wav import Code2Wav
from omni_actors.models.tiny.cache import cached
from omni_actors.models.tiny.qwen3_omni import GAINS
from omni_actors.models.tiny.weights import initialise
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot.outputs import Result
from report import Report, arguments

PIECE, SHORT = 25, 4

NARROW = {"hidden_size": 64, "intermediate_size": 128, "decoder_dim": 64, "num_attention_heads": 4}


def published(folder: Path) -> Path:
    """Return a checkpoint whose code2wav has the published geometry, and no other parts."""
    config = Qwen3OmniMoeConfig(code2wav_config={**NARROW, "num_key_value_heads": 4, "codebook_size": 256})
    model = Qwen3OmniMoeCode2Wav._from_config(config.code2wav_config)
    gains = {name.removeprefix("code2wav."): gain for name, gain in GAINS.items() if name.startswith("code2wav.")}
    initialise(model, 0, gains)
    save_file({f"code2wav.{name}": weight for name, weight in model.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    return folder


def loaded(folder: Path) -> Code2Wav:
    made = Code2Wav(
        Hello(
            version=PROTOCOL_VERSION,
            stage="code2wav",
            replica=0,
            incarnation=0,
            engine="",
            adapter="",
            model=str(folder),
        )
    )
    made.load(lambda text, fraction: None)
    return made


def in_pieces(
    codec: Code2Wav, codes: np.ndarray[Any, Any], context: int | None, frames: int
) -> tuple[np.ndarray[Any, Any], float]:
    """Return the samples, and the milliseconds per second of sound."""
    codec.configure({"ramp": False, "chunk_frames": frames, "left_context_frames": context})
    stream, _ = codec.open(Work(0, "r0", {}, frozenset({"codes"}), routed=True))
    pieces = []
    began = time.perf_counter()
    items = codec.feed(stream, "codes", Payload("codes", {}, {"codes": codes}), True)
    while items:
        (result,) = codec.run(items)
        assert isinstance(result, Result)
        pieces += [piece.payload.tensors["samples"] for piece in result.pieces if piece.payload is not None]
        items = codec.more(stream)
    samples = np.concatenate(pieces)
    return samples, 1e3 * (time.perf_counter() - began) / (len(samples) / codec.sample_rate)


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    options = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    report = Report(f"Pieces of {PIECE} frames against the whole, by frames of left context")
    with tempfile.TemporaryDirectory() as temporary:
        networks = {"tiny": cached("qwen3-omni"), "published geometry, narrow": published(Path(temporary))}
        for name, folder in networks.items():
            codec = loaded(folder)
            enough = codec.sufficient_context
            frames = 3 * PIECE + min(enough, 200 if options.quick else 1000)
            codes = np.random.default_rng(0).integers(0, codec.codebook_size, (frames, codec.groups))
            with torch.inference_mode():
                whole = codec.decode(torch.from_numpy(codes)[None])[0].numpy()
            steps = (0, 2, 5, 10, 15, 25, 50, 72, 144, 288)
            names = {enough: f"{enough} (sufficient)", None: "remembered"}
            for context in (*(step for step in steps if step < enough), enough, None):
                in_pieces(codec, codes[: 2 * PIECE], context, PIECE)  # what is made on first use
                samples, cost = in_pieces(codec, codes, context, PIECE)
                noise = np.square(samples - whole).mean()
                report.rows.append(
                    {
                        "network": name,
                        "context": names.get(context, str(context)),
                        "dB": float(10 * np.log10(np.square(whole).mean() / noise)),
                        "largest difference": float(np.abs(samples - whole).max()),
                        f"ms/s, pieces of {PIECE}": cost,
                        f"ms/s, pieces of {SHORT}": in_pieces(codec, codes[: 6 * PIECE], context, SHORT)[1],
                    }
                )
    report.show()
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
