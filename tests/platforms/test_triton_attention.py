"""The Triton kernel of attention over the paged cache, run by Triton's interpreter on the processor.

Opt-in: it needs Triton, which a torch for processors does not bring (``pip install triton``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.deadline(120),
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
]

PROGRAM = """
import torch
from omni_actors.platforms.runtime.kernels import paged_decode as plain
from omni_actors.platforms.runtime.triton_attention import paged_decode

torch.manual_seed(0)
cases = [(4, 2, 16, 16, None, None), (8, 1, 24, 16, None, None), (4, 4, 64, 32, 10, None), (6, 2, 32, 16, 5, 2.0)]
for dtype, bound in ((torch.float32, 1e-5), (torch.float16, 5e-3)):
    for heads, kv_heads, head_dim, size, window, softcap in cases:
        cache = torch.randn(10, 2 * kv_heads, size, head_dim).to(dtype)
        keys, values, query = cache[:, :kv_heads], cache[:, kv_heads:], torch.randn(3, heads, head_dim).to(dtype)
        lengths = torch.tensor([2 * size + 3, 1, size], dtype=torch.int32)
        table = torch.tensor([[5, 2, 7], [1, 0, 0], [9, 0, 0]], dtype=torch.int32)
        asked = table, lengths, head_dim**-0.5, window, softcap
        error = (paged_decode(query, keys, values, *asked) - plain(query, keys, values, *asked)).abs().max().item()
        assert error < bound, (dtype, head_dim, window, softcap, error)
"""


def test_it_computes_what_plain_torch_does() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert made.returncode == 0, made.stderr
