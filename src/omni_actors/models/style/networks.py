"""The networks of style transfer on onnxruntime, on arrays float32 [height, width, 3] from 0 to 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from PIL import Image

Numbers = npt.NDArray[np.float32]

STYLES = 26
"""Styles that the first network knows by number."""

_STYLE_SIDE = 256
_WHOLE_SIDE = 384
"""Side of the square that the third network takes: larger pictures are shrunk for it."""


class Networks:
    """The three networks of a folder, each on some threads."""

    def __init__(self, folder: Path, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3

        def network(name: str) -> Any:
            path = str(folder / f"{name}.onnx")
            return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

        self._styles, self._predict, self._transform = map(network, ("styles", "predict", "transform"))

    def numbered(self, picture: Numbers, shares: Numbers) -> Numbers:
        """Return a picture in a mixture of the numbered styles; ``shares`` [26] add up to 1."""
        height, width = picture.shape[:2]
        padded = np.pad(picture, ((0, -height % 4), (0, -width % 4), (0, 0)), mode="reflect")
        given = {"image": padded.transpose(2, 0, 1)[None], "style_weights": shares}
        made = self._styles.run(None, given)[0][0]
        return np.ascontiguousarray(made.transpose(1, 2, 0)[:height, :width])

    def style_of(self, picture: Numbers) -> Numbers:
        """Return the style of a picture's middle, a vector."""
        height, width = picture.shape[:2]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        square = _resized(picture[top : top + side, left : left + side], _STYLE_SIDE, _STYLE_SIDE)
        vector: Numbers = self._predict.run(None, {self._predict.get_inputs()[0].name: square[None]})[0]
        return vector

    def styled(self, picture: Numbers, style: Numbers) -> Numbers:
        """Return a picture in a style. The network works on 384 pixels; the result is enlarged again."""
        height, width = picture.shape[:2]
        scale = _WHOLE_SIDE / max(height, width)
        rows, columns = max(1, round(height * scale)), max(1, round(width * scale))
        small = _resized(picture, rows, columns)
        padded = np.pad(small, ((0, _WHOLE_SIDE - rows), (0, _WHOLE_SIDE - columns), (0, 0)), mode="symmetric")
        content, vector = (it.name for it in self._transform.get_inputs())
        made = self._transform.run(None, {content: padded[None], vector: style.astype(np.float32)})[0][0]
        return _resized(made[:rows, :columns], height, width)


def _resized(picture: Numbers, height: int, width: int) -> Numbers:
    if picture.shape[:2] == (height, width):
        return picture
    channels = [
        Image.fromarray(np.ascontiguousarray(picture[..., channel])).resize((width, height), Image.Resampling.LANCZOS)
        for channel in range(3)
    ]
    return np.stack([np.asarray(channel, np.float32) for channel in channels], -1)
