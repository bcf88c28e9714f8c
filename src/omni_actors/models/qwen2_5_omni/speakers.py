"""The speakers of a Qwen2.5-Omni checkpoint: ``spk_dict.pt``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from omni_actors.protocol.errors import ErrorInfo, OmniError

FILE = "spk_dict.pt"


@dataclass(frozen=True, slots=True)
class Speaker:
    """``bos_token`` begins what the talker says, ``cond`` float32 [1, dim] and ``ref_mel`` float32 [1, frames, mels]
    condition the vocoder."""

    bos_token: int
    cond: torch.Tensor
    ref_mel: torch.Tensor


def read_speakers(folder: Path) -> dict[str, Speaker]:
    """Return the speakers by name, in the file's order. Only tensors and plain values are read; no code of the file
    runs. Raises :class:`OmniError` (500) if the file has no speaker."""
    try:
        found = torch.load(folder / FILE, map_location="cpu", weights_only=True)
        return {
            name: Speaker(int(it["bos_token"]), it["cond"].float(), it["ref_mel"].float()) for name, it in found.items()
        }
    except (OSError, KeyError, AttributeError, RuntimeError, ValueError) as error:
        raise OmniError(ErrorInfo(message=f"{folder / FILE}: {error}", code="bad_model", status=500)) from error
