"""The declaration of the pipeline, the only file of this package that the serving process imports.

The declaration names adapters by dotted string, so that it imports no model code.
"""

from __future__ import annotations

from omni_actors.author import Edge, Option, Parameter, Pipeline, Port, Stage, Task

SAMPLE_RATE = 8000

PIPELINE = Pipeline(
    name="tones",
    stages=(
        # Text to codes: one payload of codes for each key, as soon as the key is known.
        Stage(
            name="dialler",
            engine="generation",
            adapter="omni_tones.dialler:Dialler",
            sections=("speech",),
            options={"max_keys": Option(256, "Most keys of one request.")},
            doc="Finds the keys in a text.",
        ),
        # Codes to sound. The port takes pieces while they come, so the sound begins with the first key.
        Stage(
            name="player",
            engine="generation",
            adapter="omni_tones.player:Player",
            ports=(Port("codes", "codes", mode="chunk", doc="int64 [n, 2]: row and column of each key."),),
            sections=("parameters",),
            emits="audio",
            doc="Makes the tones of each key.",
        ),
    ),
    edges=(Edge("dialler", "player.codes", "codes", mode="chunk"),),
    tasks=(Task("speech", entries={"text": "dialler"}, outputs={"audio": "player"}),),
    voices=("keypad",),
    sample_rate=SAMPLE_RATE,
    languages=(),
    speech_fields=(),  # of the fields of a speech request, only text and voice have a meaning here
    parameters=(
        Parameter("tone_ms", 100, "Milliseconds that a key sounds.", least=20, most=1000),
        Parameter("gap_ms", 50, "Milliseconds of silence after each key.", least=0, most=1000),
        Parameter("level", 0.4, "Loudness of each of the two tones.", least=0.0, most=0.5),
    ),
    doc="Telephone keys as sound (DTMF).",
)
