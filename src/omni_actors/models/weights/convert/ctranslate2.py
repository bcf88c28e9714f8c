"""Reading a CTranslate2 model file (binary versions 4 to 6): names, shapes, numbers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

Array = np.ndarray[Any, Any]

_DTYPES: dict[int, type[np.generic]] = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


def read(path: Path) -> dict[str, Array]:
    """Every variable by name, as float32: an int8 or int16 matrix is divided by its row scales.

    Raises :class:`ValueError` for a file of another layout.
    """
    with open(path, "rb") as file:
        version = _number(file, "I")
        if not 4 <= version <= 6:
            raise ValueError(f"{path.name}: binary version {version} is not known")
        _string(file)  # the specification's name
        _number(file, "I")  # its revision
        raw: dict[str, Array] = {}
        for _ in range(_number(file, "I")):
            name = _string(file)
            shape = [_number(file, "I") for _ in range(_number(file, "B"))]
            dtype = _DTYPES[_number(file, "B")]
            raw[name] = np.frombuffer(file.read(_number(file, "I")), dtype).reshape(shape)
        for _ in range(_number(file, "I")):
            alias = _string(file)
            raw[alias] = raw[_string(file)]
    return {name: _plain(name, raw) for name in raw}


def _plain(name: str, raw: dict[str, Array]) -> Array:
    array = raw[name].astype(np.float32)
    scale = raw.get(f"{name}_scale")
    if scale is None:
        return array
    return np.asarray(array / scale.astype(np.float32).reshape(-1, *([1] * (array.ndim - 1))))


def _number(file: BinaryIO, code: str) -> int:
    layout = "<" + code
    return int(struct.unpack(layout, file.read(struct.calcsize(layout)))[0])


def _string(file: BinaryIO) -> str:
    return file.read(_number(file, "H"))[:-1].decode()
