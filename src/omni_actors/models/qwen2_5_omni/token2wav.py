"""The vocoder stage turns codec tokens into sound, block by block, while the tokens arrive.

Spectrograms of blocks are computed in groups, as soon as the codes ahead of a group are there (:mod:`flow`). Groups
grow from one to the next, since each group also pays for the blocks ahead; the borders of groups depend on the blocks'
numbers alone. BigVGAN turns spectrograms into sound, in windows with as much context on both sides as its convolutions
reach. The sound therefore depends neither on the cut of the input nor on the time of its arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniToken2WavBigVGANModel,
    Qwen2_5OmniToken2WavDiTModel,
)

from omni_actors.connectors.payload import Payload
from omni_actors.models.common.load import load_part
from omni_actors.models.qwen2_5_omni.bigvgan import BigVGAN
from omni_actors.models.qwen2_5_omni.flow import Condition, Flow, Solved, Window
from omni_actors.models.qwen2_5_omni.pipeline import SAMPLE_RATE, TOKEN2WAV_OPTIONS
from omni_actors.models.qwen2_5_omni.speakers import read_speakers
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import Speech
from omni_actors.protocol.request import Usage
from omni_actors.worker.checks import TensorSpec, WarmUpError, check_input
from omni_actors.worker.device import kernels_of
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot.adapter import GenerationAdapter
from omni_actors.worker.engines.oneshot.outputs import Result, audio_piece
from omni_actors.worker.engines.oneshot.ramp import Ramp
from omni_actors.worker.memory import give_memory_back

PROBE_FRAMES = 192
"""Length of the spectrogram on which the convolutions' reach is measured."""


@dataclass(slots=True, eq=False)
class Voicing:
    """The state of one request. ``mel`` [frames, mels] is the spectrogram from frame ``base`` on, as far as ``blocks``
    blocks reach; ``memory`` is the last block's memory (:class:`~omni_actors.models.qwen2_5_omni.flow.Solved`);
    ``sent`` frames have left as sound."""

    work: Work
    ramp: Ramp
    condition: Condition
    seed: int
    codes: torch.Tensor
    mel: torch.Tensor
    memory: torch.Tensor | None = None
    base: int = 0
    blocks: int = 0
    taken: int = 0
    sent: int = 0
    ended: bool = False
    busy: bool = False


class Token2Wav(GenerationAdapter[Voicing, Voicing]):
    """``hello.model`` is the checkpoint's folder. Options: :data:`TOKEN2WAV_OPTIONS`. It computes in float32, as the
    checkpoint's makers do."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._options = filled(TOKEN2WAV_OPTIONS, hello.options)
        self._flow: Flow
        self._vocoder: BigVGAN

    @torch.inference_mode()
    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        torch.set_num_threads(self.hello.threads)
        folder = self.hello.model
        assert folder is not None
        progress("loading the vocoder", None)
        config = AutoConfig.from_pretrained(folder, local_files_only=True).token2wav_config
        device = self.hello.device
        for part in (config.dit_config, config.bigvgan_config):
            part._attn_implementation = "sdpa"
        dit = load_part(
            Qwen2_5OmniToken2WavDiTModel,
            config.dit_config,
            folder,
            "token2wav.code2wav_dit_model.",
            torch.float32,
            device,
        )
        self._vocoder = BigVGAN(
            load_part(
                Qwen2_5OmniToken2WavBigVGANModel,
                config.bigvgan_config,
                folder,
                "token2wav.code2wav_bigvgan_model.",
                torch.float32,
                device,
            ),
            kernels_of(self.hello),
        )
        options = self._options
        self._flow = Flow(dit, options["steps"], options["guidance"], options["sway"])
        self._hop = self._vocoder.hop
        self._conditions = {
            name.lower(): self._flow.condition(speaker) for name, speaker in read_speakers(Path(folder)).items()
        }
        progress("measuring the vocoder's reach", None)
        reach = self._reach()
        self._back = options["left_context_blocks"]
        self._ahead = _given(options["look_ahead_blocks"], self._flow.sufficient_ahead)
        self._context = _given(options["vocoder_context_frames"], reach)
        self._most = int(options["window_blocks"])
        self._pace = float(options["pace"])
        give_memory_back()
        return {
            "sample_rate": SAMPLE_RATE,
            "channels": 1,
            "voices": sorted(self._conditions),
            "block_codes": self._flow.block_codes,
            "sufficient_left_context_blocks": self._flow.sufficient_back,
            "sufficient_look_ahead_blocks": self._flow.sufficient_ahead,
            "sufficient_vocoder_context_frames": reach,
        }

    def _reach(self) -> int:
        """Measure how many frames on either side of a frame affect its sound: change one frame in the middle, and see
        which samples change."""
        generator = torch.Generator().manual_seed(0)
        mel = torch.randn(1, self._flow.mels, PROBE_FRAMES, generator=generator).to(self.hello.device) - 4
        before = self._vocoder(mel, 0, PROBE_FRAMES)
        if not before.isfinite().all():
            raise WarmUpError("samples")
        mel[:, :, PROBE_FRAMES // 2] += 1
        changed = (self._vocoder(mel, 0, PROBE_FRAMES) != before)[0].nonzero().flatten() // self._hop
        middle = PROBE_FRAMES // 2
        return int(max(middle - changed.min(), changed.max() - middle))

    # ---- requests

    @torch.inference_mode()
    def open(self, work: Work) -> tuple[Voicing, Sequence[Voicing]]:
        speech = work.params.get("speech") or Speech()
        name = next(iter(self._conditions)) if speech.voice == "default" else speech.voice.lower()
        condition = self._conditions.get(name)
        if condition is None:
            known = ", ".join(self._conditions)
            raise invalid_request(f"There is no voice '{speech.voice}'; there are: {known}.", "voice")
        options = self._options
        most = options["chunk_frames"]
        first = speech.initial_chunk_frames or (options["first_chunk_frames"] if options["ramp"] else most)
        frame_s = self._flow.repeats * self._hop / SAMPLE_RATE
        ramp = Ramp(frame_s, first, options["min_chunk_frames"], most, options["ramp"])
        device = self._flow.device
        mel = torch.empty(0, self._flow.mels, device=device)
        return Voicing(work, ramp, condition, speech.seed, torch.empty(0, dtype=torch.int64, device=device), mel), ()

    def feed(self, state: Voicing, port: str, payload: Payload | None, end: bool) -> Sequence[Voicing]:
        if payload is not None:
            check_input(payload, {"codes": TensorSpec("int64", (None, 1), 0, self._flow.codes + 1)})
            codes = payload.tensors["codes"]
            state.codes = torch.cat((state.codes, torch.from_numpy(codes[:, 0].copy()).to(state.codes.device)))
        state.ended |= end
        return self.more(state)

    def more(self, state: Voicing) -> Sequence[Voicing]:
        """The request again, if a piece's worth of codes can be turned into sound now."""
        waiting = (self._sounding(state, self._target(state)) - state.sent) // self._flow.repeats
        due = waiting > 0 and (state.ended or waiting >= state.ramp.wanted)
        if state.busy or not due:
            return ()
        state.busy = True
        return (state,)

    def _group_end(self, state: Voicing, block: int) -> int:
        """Return the end of the group that begins with ``block``; ``block`` itself while the group cannot be solved."""
        size, codes = self._flow.block_codes, len(state.codes)
        end = group_end(block, self._context / (size * self._flow.repeats), self._most, self._pace)
        if (end + self._ahead) * size <= codes:
            return end
        # The end of the input is in sight: everything up to it is solved as in the whole.
        return -(-codes // size) if state.ended else block

    def _sounding(self, state: Voicing, blocks: int) -> int:
        """Return how many frames can be turned into sound when ``blocks`` blocks are computed."""
        frames = min(blocks * self._flow.block_codes, len(state.codes)) * self._flow.repeats
        whole = state.ended and blocks * self._flow.block_codes >= len(state.codes)
        return frames if whole else max(state.sent, frames - self._context)

    @torch.inference_mode()
    def run(self, items: Sequence[Voicing]) -> Sequence[Result | OmniError]:
        targets = {id(state): self._target(state) for state in items}
        solved = self._solve(items, targets)
        whole = {id(state): solved[id(state)].mel for state in items}
        ends = {id(state): self._sounding(state, targets[id(state)]) for state in items}
        samples = self._voice(items, whole, ends)
        results: list[Result | OmniError] = []
        for state in items:
            results.append(self._result(state, samples[id(state)], ends[id(state)]))
            self._advance(state, solved[id(state)], targets[id(state)], ends[id(state)])
        return results

    def _target(self, state: Voicing) -> int:
        """Return up to which block the request is solved now: enough blocks to give sound, no more than asked."""
        wanted = state.sent + state.ramp.wanted * self._flow.repeats
        blocks = state.blocks
        while self._sounding(state, blocks) < wanted and (end := self._group_end(state, blocks)) > blocks:
            blocks = end
        return blocks

    def _solve(self, items: Sequence[Voicing], targets: dict[int, int]) -> dict[int, Solved]:
        """Solve each request's spectrogram up to its target, after the part that exists; groups of one request one by
        one, groups of different requests together."""
        blocks = {id(state): state.blocks for state in items}
        mels = {id(state): [state.mel] for state in items}
        memories = {id(state): state.memory for state in items}
        while pending := [state for state in items if blocks[id(state)] < targets[id(state)]]:
            ends = [self._group_end(state, blocks[id(state)]) for state in pending]
            windows = [
                self._window(state, blocks[id(state)], end, memories[id(state)])
                for state, end in zip(pending, ends, strict=True)
            ]
            for state, end, solved in zip(pending, ends, self._flow.solve(windows), strict=True):
                mels[id(state)].append(solved.mel)
                blocks[id(state)], memories[id(state)] = end, solved.memory if self._back is None else None
        return {key: Solved(torch.cat(parts), memories[key]) for key, parts in mels.items()}

    def _window(self, state: Voicing, block: int, end: int, memory: torch.Tensor | None) -> Window:
        """Return the window of the group of blocks ``block … end - 1``."""
        size, repeats = self._flow.block_codes, self._flow.repeats
        first = block if self._back is None else max(0, block - self._back)
        codes = state.codes[first * size : (end + self._ahead) * size]
        noise = torch.cat([self._flow.noise(state.seed, b) for b in range(first, first + -(-len(codes) // size))])
        begin = (block - first) * size
        stop = min((end - first) * size, len(codes))
        return Window(codes, noise[: len(codes) * repeats], first, begin, stop, state.condition, memory)

    def _voice(
        self, items: Sequence[Voicing], mels: dict[int, torch.Tensor], ends: dict[int, int]
    ) -> dict[int, np.ndarray[Any, np.dtype[np.float32]]]:
        """The sound of frames ``sent … end - 1`` of each request, but for what the client has."""

        def cut(state: Voicing, end: int) -> tuple[torch.Tensor, int, int]:
            begin = self._begin(state)
            first = max(0, begin - self._context)
            window = mels[id(state)][first - state.base : end + self._context - state.base]
            return window, begin - first, end - first

        cuts = {id(state): cut(state, end) for state in items if (end := ends[id(state)]) > self._begin(state)}
        found = {id(state): np.empty(0, np.float32) for state in items}
        for group in _groups(cuts, lambda key: (len(cuts[key][0]), *cuts[key][1:])):
            _, first, last = cuts[group[0]]
            sound = self._vocoder(torch.stack([cuts[key][0].t() for key in group]), first, last).cpu().numpy()
            found |= {key: np.ascontiguousarray(row) for key, row in zip(group, sound, strict=True)}
        return found

    def _begin(self, state: Voicing) -> int:
        """Return the first frame of the next piece of sound. Spectrograms depend on earlier spectrograms and are made
        again; delivered sound is not, except the last frame's, so that a last piece remains to finish with."""
        return max(state.sent, state.work.delivered // self._hop - 1)

    def _result(self, state: Voicing, samples: np.ndarray[Any, np.dtype[np.float32]], end: int) -> Result:
        meta = {"start": self._begin(state) * self._hop} if state.work.delivered else {}
        sent = [audio_piece(state.work, samples, SAMPLE_RATE, **meta)] if len(samples) else []
        return Result(sent, Usage(audio_output_s=(end - state.sent) * self._hop / SAMPLE_RATE))

    def _advance(self, state: Voicing, solved: Solved, blocks: int, end: int) -> None:
        frames = end - state.sent
        state.ramp.cut(max(1, frames // self._flow.repeats), frames * self._hop / SAMPLE_RATE)
        state.blocks, state.sent, state.busy = blocks, end, False
        keep = max(state.base, end - self._context)
        state.mel, state.base, state.memory = solved.mel[keep - state.base :], keep, solved.memory


def group_end(block: int, context: float, most: int, pace: float) -> int:
    """Return the end of the group that begins with ``block``; the first group begins with block 0. ``context`` is the
    number of following blocks that a moment's sound needs, ``most`` the size of the largest group.

    The first group is as short as possible while giving any sound. When blocks ``0 … block - 1`` are solved,
    ``block - context`` blocks are sound, and during their playback ``pace`` times as many blocks arrive.
    """
    first = int(context) + 1
    end = first if block == 0 else int(first + pace * (block - context))
    return max(block + 1, min(end, block + most))


def _given(option: int | None, sufficient: int) -> int:
    return sufficient if option is None else int(option)


def _groups(items: Iterable[Any], shape: Callable[[Any], Hashable]) -> Iterable[list[Any]]:
    """Items of equal shapes together."""
    groups: dict[Hashable, list[Any]] = {}
    for item in items:
        groups.setdefault(shape(item), []).append(item)
    return groups.values()
