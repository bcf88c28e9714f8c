"""Views of a payload for torch: one memory, no warning, alive as long as the views are."""

from __future__ import annotations

import gc
import warnings

import numpy as np
import pytest
import torch

from omni_actors.connectors.payload import Payload
from omni_actors.worker.tensors import tensor_of, tensor_payload, tensor_view


def read_only(tensor: torch.Tensor) -> Payload:
    payload = tensor_payload("x", {}, {"a": tensor})
    for array in payload.tensors.values():
        array.flags.writeable = False
    return payload


TENSORS = [
    torch.arange(12.0).view(3, 4),
    torch.arange(12, dtype=torch.bfloat16).view(3, 4),
    torch.arange(12, dtype=torch.int64),
    torch.zeros((0, 4)),
    torch.tensor(True),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}{tuple(t.shape)}")
def test_a_view_equals_the_tensor_and_shares_the_memory(tensor: torch.Tensor) -> None:
    payload = read_only(tensor)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        view = tensor_view(payload, "a")
    assert (view.dtype, view.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(view, tensor)
    assert not tensor.numel() or view.data_ptr() == payload.tensors["a"].ctypes.data
    assert not payload.tensors["a"].flags.writeable
    copy = tensor_of(payload, "a")
    assert torch.equal(copy, tensor)
    assert not tensor.numel() or copy.data_ptr() != view.data_ptr()


def test_a_view_keeps_the_memory_alive() -> None:
    array = np.arange(100_000)
    array.flags.writeable = False
    payload = Payload("x", {}, {"a": array})
    view = tensor_view(payload, "a")
    del payload, array
    gc.collect()
    other = np.zeros(100_000, dtype=np.int64)
    assert torch.equal(view, torch.arange(100_000))
    assert not other.any()


def test_an_array_that_can_be_written_stays_so() -> None:
    payload = Payload("x", {}, {"a": np.zeros(3)})
    tensor_view(payload, "a").fill_(1)
    np.testing.assert_array_equal(payload.tensors["a"], np.ones(3))
