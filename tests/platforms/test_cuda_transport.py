"""The GPU's transport in host memory: where slabs are shared and attached is replaced, the rest is what runs."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_actors.platforms.cuda import transport
from omni_actors.platforms.cuda.transport import CudaTransport, TorchSharing
from omni_actors.platforms.runtime import TransportError

CPU = torch.device("cpu")


@dataclass
class Sharing:
    """What all processes have shared, by number."""

    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    attached: list[int] = field(default_factory=list)
    buried: list[int] = field(default_factory=list)
    synchronized: int = 0

    def share(self, storage: torch.UntypedStorage) -> tuple[Any, ...]:
        number = len(self.storages)
        self.storages[number] = storage
        return number, b"handle"

    def attach(self, index: int, shared: tuple[Any, ...]) -> torch.UntypedStorage:
        number, handle = shared
        assert handle == b"handle"
        if number not in self.storages:
            raise RuntimeError("CUDA error: invalid resource handle")
        self.attached.append(number)
        return self.storages[number]

    def bury(self, shared: tuple[Any, ...]) -> None:
        self.buried.append(shared[0])

    def synchronize(self) -> None:
        self.synchronized += 1


@dataclass
class Ends:
    sharing: Sharing = field(default_factory=Sharing)

    def __post_init__(self) -> None:
        self.producer = CudaTransport(CPU, self.sharing)
        self.consumer = CudaTransport(CPU, self.sharing)


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 7), (70_000,)], ids=str)
def test_a_tensor_arrives_bit_for_bit(shape: tuple[int, ...], dtype: torch.dtype, ends: Ends) -> None:
    sent = torch.randint(0, 2, shape).to(dtype)
    handle = ends.producer.export(sent)
    got = ends.consumer.open(handle)
    assert (got.dtype, got.shape) == (dtype, sent.shape)
    assert torch.equal(got, sent)


def test_what_is_lent_is_a_copy_that_is_complete(ends: Ends) -> None:
    sent = torch.ones(10)
    handle = ends.producer.export(sent)
    assert ends.sharing.synchronized == 1
    sent.zero_()
    assert ends.consumer.open(handle).sum() == 10
    ends.consumer.close(handle)
    assert ends.sharing.synchronized == 2  # what was read is read


def test_what_is_released_serves_the_next_and_what_is_lent_does_not(ends: Ends) -> None:
    first, second = (ends.producer.export(torch.full((9,), float(i))) for i in range(2))
    ends.producer.release(first)
    third = ends.producer.export(torch.full((9,), 2.0))
    assert ends.consumer.open(second)[0] == 1
    assert ends.consumer.open(third)[0] == 2
    ends.producer.release(first)  # once more, which is nothing
    assert ends.producer.export(torch.zeros(9)) != third
    assert ends.consumer.open(third)[0] == 2
    assert len(ends.sharing.storages) == 1  # all in one slab,
    assert ends.sharing.attached == [0]  # which is attached once


def test_a_large_tensor_has_a_slab_of_its_own(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SLAB_BYTES", 1 << 20)
    handle = ends.producer.export(torch.arange(300_000))
    assert ends.consumer.open(handle)[-1] == 299_999
    assert ends.sharing.storages[0].nbytes() == 4 << 20


def test_a_handle_that_cannot_be_opened_says_so(ends: Ends) -> None:
    handle = ends.producer.export(torch.ones(4))
    ends.sharing.storages.clear()
    with pytest.raises(TransportError, match="invalid resource handle"):
        ends.consumer.open(handle)
    with pytest.raises(TransportError):
        ends.consumer.open(b"\xc1nonsense")


def test_memory_that_is_short_is_said_so(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*shape: int, **_: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(torch, "empty", none)
    with pytest.raises(TransportError, match="out of memory"):
        ends.producer.export(torch.ones(4))


def test_slabs_of_processes_that_ended_are_let_go(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getpid", lambda: 1 << 30)  # nobody's
    handle = ends.producer.export(torch.ones(4))
    ends.consumer.open(handle)
    other = CudaTransport(CPU, ends.sharing)
    ends.consumer.open(other.export(torch.ones(4)))
    assert len(ends.consumer._attached) == 2  # it is read still
    ends.consumer.close(handle)
    third = CudaTransport(CPU, ends.sharing)
    ends.consumer.open(third.export(torch.ones(4)))
    assert [it.readers for it in ends.consumer._attached.values()] == [1, 1]
    assert ends.sharing.buried == [0]


def test_the_file_in_which_torch_counts_readers_goes_with_its_process() -> None:
    """torch names it as shared memory: ``/name``."""
    counter = Path("/dev/shm") / f"torch_test_{secrets.token_hex(8)}"
    counter.touch()
    shared = (0, b"", 0, 0, f"/{counter.name}".encode(), 0, b"", False)
    TorchSharing().bury(shared)
    assert not counter.exists()
    TorchSharing().bury(shared)  # another reader was first
