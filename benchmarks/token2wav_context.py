"""The cost of making Qwen2.5-Omni's sound from less context than it depends on.

    python benchmarks/token2wav_context.py [--quick] [--json FILE]

Ten blocks of codes, solved a block at a time, against the whole in one go: signal to noise in dB, the largest
difference of full scale, and the time per second of sound on one thread. One option is changed at a time; the others
have their defaults, with which groups remember all groups before and look one block ahead. Two networks of random
weights: the tiny checkpoint's, and a narrow one of the published geometry (as many layers, blocks, kernels and rates;
thinner). The part of a voice that lies in the missing context depends on trained weights: only a released checkpoint
gives such figures.
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
from transformers import Qwen2_5OmniConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel
from transformers.utils import logging

from omni_actors.connectors.payload import Payload
from omni_actors.models.qwen2_5_omni.token2wav import Token2Wav
from omni_actors.models.tiny.cache import cached
from omni_actors.models.tiny.qwen2_5_omni import GAINS, speakers
from omni_actors.models.tiny.weights import initialise
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot.outputs import Result
from report import Report, arguments

BLOCKS = 10

NARROW = {
    "dit_config": {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "head_dim": 16,
        "emb_dim": 32,
        "num_embeds": 128,
        "enc_emb_dim": 16,
        "enc_dim": 16,
        "enc_channels": [16, 16, 16, 16, 48],
        "enc_attention_channels": 8,
        "enc_se_channels": 8,
    },
    "bigvgan_config": {"upsample_initial_channel": 64},
}

CHANGES: tuple[tuple[str, tuple[int | None, ...]], ...] = (
    ("look_ahead_blocks", (0, 1, 2, 4)),
    ("left_context_blocks", (0, 1, 2, 4, None)),
    ("vocoder_context_frames", (0, 5, 10, 15, None)),
)


def published(folder: Path) -> Path:
    """Return a checkpoint whose token2wav has the published geometry, with speakers and no other parts."""
    config = Qwen2_5OmniConfig(token2wav_config=NARROW)
    model = Qwen2_5OmniToken2WavModel._from_config(config.token2wav_config)
    gains = {name.removeprefix("token2wav."): gain for name, gain in GAINS.items() if name.startswith("token2wav.")}
    initialise(model, 0, gains)
    save_file(
        {f"token2wav.{name}": it.contiguous() for name, it in model.state_dict().items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    torch.save(speakers(0), folder / "spk_dict.pt")
    return folder


def said(folder: Path, codes: np.ndarray[Any, Any], **options: Any) -> tuple[np.ndarray[Any, Any], float]:
    """Return the samples, and the seconds of their computation."""
    hello = Hello(
        version=PROTOCOL_VERSION,
        stage="token2wav",
        replica=0,
        incarnation=0,
        engine="",
        adapter="",
        model=str(folder),
        options={"ramp": False, "window_blocks": 1} | options,
    )
    vocoder = Token2Wav(hello)
    vocoder.load(lambda text, fraction: None)
    stream, _ = vocoder.open(Work(0, "r0", {}, frozenset({"codes"}), routed=True))
    pieces = []
    began = time.perf_counter()
    items = vocoder.feed(stream, "codes", Payload("codes", {}, {"codes": codes}), True)
    while items:
        (result,) = vocoder.run(items)
        assert isinstance(result, Result)
        pieces += [piece.payload.tensors["samples"] for piece in result.pieces if piece.payload is not None]
        items = vocoder.more(stream)
    return np.concatenate(pieces), time.perf_counter() - began


def main() -> None:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    report = Report("Blocks one by one against the whole, by what they are made of")
    with tempfile.TemporaryDirectory() as temporary:
        networks = {"tiny": cached("qwen2.5-omni"), "published geometry, narrow": published(Path(temporary))}
        for name, folder in networks.items():
            codes = np.random.default_rng(0).integers(0, 128, (12 * (6 if options.quick else BLOCKS), 1))
            whole, _ = said(folder, codes, look_ahead_blocks=None, window_blocks=BLOCKS)
            for option, values in CHANGES:
                for value in values:
                    samples, seconds = said(folder, codes, **{"chunk_frames": 12, option: value})
                    noise = max(1e-18, np.square(samples - whole).mean())
                    report.rows.append(
                        {
                            "network": name,
                            "option": option,
                            "value": "null" if value is None else str(value),
                            "dB": float(10 * np.log10(np.square(whole).mean() / noise)),
                            "largest difference": float(np.abs(samples - whole).max()),
                            "ms per second of sound": 1e3 * seconds / (len(samples) / 24_000),
                        }
                    )
    report.show()
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
