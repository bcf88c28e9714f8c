"""The bytes of a payload: the place of each tensor, the one copy into that place, and the views of readers.

Small payloads ride in the frame; larger payloads lie in a slot of the producer's arena, from which a link hands them
on. An engine that asks for the slot first (:func:`place`) and computes into the slot saves the copy too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from omni_actors.connectors.payload import Payload, TensorSpecs, bfloat16_of, numpy_dtype
from omni_actors.connectors.shared_memory import Arena, Slot
from omni_actors.protocol.frames import INLINE_LIMIT, Chunk, DeviceMeta, TensorMeta

_ALIGN = 64


@dataclass(slots=True, eq=False)
class Export:
    """A tensor on a device that other processes can open. ``readers`` counts the routes that have not acknowledged the
    tensor's chunk."""

    handle: bytes
    nbytes: int
    readers: int


@dataclass(slots=True)
class Packed:
    """A payload in a place that readers can reach: ``data`` rides in the frame, or the payload lies in ``slot``. The
    tensors of ``device`` stay on the device, as ``exports``."""

    kind: str
    meta: dict[str, Any]
    metas: tuple[TensorMeta, ...]
    data: bytes | None = None
    slot: Slot | None = None
    device: tuple[DeviceMeta, ...] = ()
    exports: tuple[Export, ...] = ()


@dataclass(slots=True)
class Placed(Payload):
    """A payload whose writable tensors lie in ``slot`` already."""

    metas: tuple[TensorMeta, ...] = ()
    slot: Slot = field(kw_only=True)

    def packed(self, readers: int) -> Packed:
        """Return the payload in the form for ``readers`` consumers. Do not write to the tensors after this call."""
        self.slot.readers = readers
        return Packed(self.kind, self.meta, self.metas, slot=self.slot)


def place(kind: str, meta: dict[str, Any], specs: TensorSpecs, arena: Arena) -> Placed | None:
    """Return a payload whose tensors are to be written in shared memory; ``None`` for a payload so small that it rides
    in its frame. The slot belongs to the caller, with one reader."""
    shapes = [(name, dtype, shape, numpy_dtype(dtype)) for name, (shape, dtype) in specs.items()]
    metas, nbytes = _layout((name, dtype, shape, _nbytes(shape, it)) for name, dtype, shape, it in shapes)
    if nbytes <= INLINE_LIMIT:
        return None
    slot = arena.allocate(nbytes)
    buffer = slot.view(nbytes)
    tensors = {it.name: _tensor(it, buffer) for it in metas}
    return Placed(kind, meta, tensors, bfloat16_of(specs), metas, slot=slot)


def pack(payload: Payload, arena: Arena, readers: int) -> Packed:
    """Copy a payload to a place that ``readers`` consumers can read. Raises :class:`TypeError` for a tensor that cannot
    travel; no slot is held in that case."""
    if not payload.tensors:
        return Packed(payload.kind, payload.meta, ())
    metas, nbytes = _layout(
        (name, _dtype_name(name, tensor, payload), tensor.shape, tensor.nbytes)
        for name, tensor in payload.tensors.items()
    )
    if nbytes <= INLINE_LIMIT:
        data = bytearray(nbytes)
        _write(payload, metas, memoryview(data))
        return Packed(payload.kind, payload.meta, metas, data=bytes(data))
    slot = arena.allocate(nbytes)
    slot.readers = readers
    _write(payload, metas, slot.view(nbytes))
    return Packed(payload.kind, payload.meta, metas, slot=slot)


def unpack(chunk: Chunk, buffer: memoryview) -> Payload | None:
    """Return the payload of a chunk as views of ``buffer``; ``None`` for a bare end. Raises :class:`ValueError` or
    :class:`TypeError` for tensors outside the buffer."""
    if not chunk.kind:
        return None
    tensors = {meta.name: _tensor(meta, buffer) for meta in chunk.tensors}
    dtypes = {meta.name: "bfloat16" for meta in chunk.tensors if meta.dtype == "bfloat16"}
    return Payload(chunk.kind, chunk.meta, tensors, dtypes)


def size_of(metas: tuple[TensorMeta, ...]) -> int:
    """Return the bytes from the begin of the first tensor to the end of the last one."""
    return metas[-1].offset + metas[-1].nbytes


def _layout(tensors: Iterable[tuple[str, str, tuple[int, ...], int]]) -> tuple[tuple[TensorMeta, ...], int]:
    """Return the place of each of (name, dtype, shape, bytes), and the total of bytes."""
    metas = []
    offset = 0
    for name, dtype, shape, nbytes in tensors:
        metas.append(TensorMeta(name, dtype, shape, offset, nbytes))
        offset += -(-nbytes // _ALIGN) * _ALIGN
    return tuple(metas), offset


def _dtype_name(name: str, tensor: np.ndarray[Any, Any], payload: Payload) -> str:
    """Return the name of the tensor's dtype on the wire, where the byte order is little-endian."""
    dtype = payload.dtypes.get(name) or tensor.dtype.name
    if tensor.dtype.newbyteorder("=") != numpy_dtype(dtype):
        raise TypeError(f"tensor {name!r} of {tensor.dtype} cannot travel as {dtype}")
    return dtype


def _write(payload: Payload, metas: tuple[TensorMeta, ...], buffer: memoryview) -> None:
    """Copy the tensors to their places: the only copy of a payload."""
    for meta in metas:
        tensor = payload.tensors[meta.name]
        np.copyto(_tensor(meta, buffer), tensor)


def _tensor(meta: TensorMeta, buffer: memoryview) -> np.ndarray[Any, Any]:
    dtype = numpy_dtype(meta.dtype)
    fits = 0 <= meta.offset <= meta.offset + meta.nbytes <= len(buffer)
    if not fits or _nbytes(meta.shape, dtype) != meta.nbytes:
        raise ValueError(f"tensor {meta.name!r} does not fit its payload")
    flat = np.frombuffer(buffer, dtype=dtype, count=meta.nbytes // dtype.itemsize, offset=meta.offset)
    return flat.reshape(meta.shape)


def _nbytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count * dtype.itemsize
