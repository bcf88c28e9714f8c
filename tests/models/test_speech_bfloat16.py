"""Speech families in the dtype that GPUs run them in: a text alone, and after a clip."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.models.speech_harness import Stage, clip

from omni_actors.connectors.payload import pcm_payload
from omni_actors.models.tiny import build
from omni_actors.pipelines.registry import Registry
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.protocol.options import defaults_of
from omni_actors.protocol.params import Speech
from omni_actors.worker.engines.oneshot import GenerationEngine

CLONING = ["csm", "dia", "pocket-tts", "vibevoice"] + (["higgs-audio"] if find_spec("torchaudio") else [])
FRAMES = 6


class Talker(Stage):
    """A family's talker in bfloat16."""

    def __init__(self, family: str, folder: Path) -> None:
        stage = Registry.installed([]).load(family).stages[0]
        hello = Hello(
            version=PROTOCOL_VERSION,
            stage=stage.name,
            replica=0,
            incarnation=1,
            engine=stage.engine,
            adapter=stage.adapter,
            model=str(folder),
            dtype="bfloat16",
            options=defaults_of(stage.options),
        )
        self.engine = GenerationEngine(hello)
        self.info = self.engine.load(lambda text, fraction: None)


@pytest.mark.parametrize("family", CLONING)
def test_it_speaks_alone_and_after_a_clip(family: str, tmp_path: Path) -> None:
    talker = Talker(family, build(family, tmp_path))
    sound = pcm_payload(clip(1.0, 24_000), 24_000)
    talker.admit(1, {"speech": Speech(text="Hello there.", max_tokens=FRAMES)}, None, ())
    cloned = Speech(text="Hello there.", max_tokens=FRAMES, reference=True, ref_text="Good day.")
    talker.admit(2, {"speech": cloned}, "reference", (sound,))
    out = talker.run()
    assert not out.failed
    assert {key for key, payload in out.payloads if payload.tensors} == {1, 2}
