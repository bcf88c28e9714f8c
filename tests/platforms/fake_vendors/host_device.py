"""A device of its own name for torch whose memory is the host's and whose operators are the processor's.

It is a real device to torch: tensors say that they are on it, and mixing them with the host's fails. torch keeps one
such slot for a process (``PrivateUse1``), so a process has one fake device. Memory goes from one side to the other by
DLPack, which is how torch takes in foreign memory: the tensor on the device and the one that an operator computes with
share it. So views stay views, and what is written in place is written.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
from torch import distributed
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

CALLS = "FAKE_VENDOR_CALLS"
"""Environment variable: the file to which each thing that was called is appended, once."""

_EXTENSION = 12
"""``kDLExtDev`` of DLPack: the device that torch calls PrivateUse1."""

_CPU = torch.device("cpu")


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _Managed(ctypes.Structure):
    """The beginning of ``DLManagedTensor``."""

    _fields_ = (("data", ctypes.c_void_p), ("device", _Device))


class Recorder:
    """Tells ``listeners`` what was called, and writes each name once to the file that the environment names."""

    def __init__(self) -> None:
        self.listeners: list[Counter[str]] = []
        self._seen: set[str] = set()

    def __call__(self, name: str) -> None:
        for calls in self.listeners:
            calls[name] += 1
        if name in self._seen:
            return
        self._seen.add(name)
        if path := os.environ.get(CALLS):
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{name}\n")


record = Recorder()


def to_device(host: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor on the fake device."""
    capsule = torch._C._to_dlpack(host)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    managed = ctypes.cast(pointer(capsule, b"dltensor"), ctypes.POINTER(_Managed)).contents
    managed.device.kind, managed.device.index = _EXTENSION, 0
    tensor: torch.Tensor = torch._C._from_dlpack(capsule)
    return tensor


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor of the host, for as long as it is used."""
    storage = tensor.untyped_storage()
    size, address = storage.nbytes(), storage.data_ptr()
    if not size or not address:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    memory: Any = (ctypes.c_char * size).from_address(address)
    memory.owner = tensor
    raw = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=tensor.dtype).set_(raw, tensor.storage_offset(), tensor.shape, tensor.stride())


def install(name: str, module: ModuleType) -> None:
    """Make ``name`` a device of torch, and ``module`` its ``torch.<name>``. Once in a process."""
    _setup_privateuseone_for_python_backend(name, backend_module=module)
    library = torch.library.Library("_", "IMPL")
    library.fallback(_execute, "PrivateUse1")
    operators = torch.library.Library("aten", "IMPL")
    # Of this one torch has an implementation for every device, which says that there is none.
    operators.impl("convolution_overrideable", _convolution, "PrivateUse1")
    _KEPT.extend((library, operators))


_KEPT: list[torch.library.Library] = []
"""A library's operators go with it."""


def _convolution(*args: Any) -> Any:
    return _execute(torch.ops.aten.convolution.default, *args)


def _execute(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Any operator: by the host's, on the same memory."""
    known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def inward(it: Any) -> Any:
        if isinstance(it, torch.Tensor) and it.device.type != "cpu":
            host = to_host(it)
            known[id(host)] = host, it
            return host
        if isinstance(it, torch.device):
            return _CPU
        return type(it)(map(inward, it)) if isinstance(it, (list, tuple)) else it

    def outward(it: Any) -> Any:
        if isinstance(it, torch.Tensor):
            return known[id(it)][1] if id(it) in known else to_device(it)
        return type(it)(map(outward, it)) if isinstance(it, (list, tuple)) else it

    if operator is torch.ops.aten._copy_from.default:
        inward(args[1]).copy_(inward(args[0]))
        return args[1]
    result = operator(*map(inward, _tensors(operator, args)), **{name: inward(it) for name, it in kwargs.items()})
    for host, tensor in known.values():
        if host.shape != tensor.shape:  # an output that was empty until it was written
            tensor.data = to_device(host)
    if not torch.is_inference_mode_enabled() or all(it.is_inference() for _, it in known.values()):
        return outward(result)
    with torch.inference_mode(
        _viewed(operator) is None
    ):  # a view of a plain tensor is a plain tensor, whenever it is made
        return outward(result)


def _tensors(operator: Any, args: tuple[Any, ...]) -> list[Any]:
    """The arguments, with tensors where torch has made a number of one: few operators take that back."""
    if torch._C._should_allow_numbers_as_tensors(operator._schema.name.rpartition(":")[2]):
        return list(args)
    declared = operator._schema.arguments
    return [
        torch.tensor(it) if isinstance(it, (bool, int, float)) and str(declared[place].type) == "Tensor" else it
        for place, it in enumerate(args)
    ]


def _viewed(operator: Any) -> Any:
    """The first result of an operator that is a view of what it was given, if there is one."""
    aliases = (it.alias_info for it in operator._schema.returns)
    return next((it for it in aliases if it is not None and not it.is_write), None)


def install_collectives(name: str, device: str) -> None:
    """Make ``name`` a backend of torch.distributed, for tensors on the fake device: by gloo, on the same memory."""

    def make(store: Any, rank: int, size: int, timeout: timedelta) -> _HostGroup:
        return _HostGroup(name, store, rank, size, timeout)

    distributed.Backend.register_backend(name, make, devices=[device])


class _HostGroup(distributed.ProcessGroup):
    def __init__(self, name: str, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._name = name
        self._gloo = distributed.ProcessGroupGloo(store, rank, size, timeout)

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> Any:
        record(f"{self._name}.allreduce")
        return self._gloo.allreduce(list(map(to_host, tensors)), options)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any = None) -> Any:
        record(f"{self._name}.allgather")
        hosts = [list(map(to_host, part)) for part in outputs]
        return self._gloo.allgather(hosts, list(map(to_host, inputs)), options)

    def gather(self, *args: Any) -> Any:
        raise RuntimeError(f"{self._name} does not support gather")  # as HCCL

    def getBackendName(self) -> str:
        return self._name


class HostModule(ModuleType):
    """``torch.<vendor>`` of the fake device: what runtimes ask of such a module. Subclasses add a vendor's own."""

    total = 8 << 30
    free = 6 << 30

    def __init__(self, name: str) -> None:
        super().__init__(f"torch.{name}")
        self._name = name
        self.failing: str | None = os.environ.get("FAKE_VENDOR_FAILS")
        """What :meth:`synchronize` raises: a device that does no more."""

    def is_available(self) -> bool:
        return os.environ.get("FAKE_VENDOR_DEVICES", "1") != "0"

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        record(f"{self._name}.set_device({device})")

    def manual_seed(self, seed: int) -> None:
        pass

    def manual_seed_all(self, seed: int) -> None:
        pass

    def synchronize(self, device: Any = None) -> None:
        record(f"{self._name}.synchronize")
        if self.failing:
            raise RuntimeError(self.failing)

    def empty_cache(self) -> None:
        record(f"{self._name}.empty_cache")

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return self.free, self.total

    def memory_allocated(self, device: Any = None) -> int:
        return 1 << 20

    def max_memory_allocated(self, device: Any = None) -> int:
        return 2 << 20

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def get_device_name(self, device: Any = None) -> str:
        return f"fake {self._name}"

    # ---- recordings: a fake device launches nothing, so replaying runs again what was recorded

    def Stream(self, *args: Any, **kwargs: Any) -> HostStream:
        return HostStream()

    def current_stream(self, device: Any = None) -> HostStream:
        return HostStream()

    @contextlib.contextmanager
    def stream(self, stream: HostStream) -> Iterator[None]:
        yield


class HostStream:
    def wait_stream(self, other: HostStream) -> None:
        pass

    def synchronize(self) -> None:
        pass
