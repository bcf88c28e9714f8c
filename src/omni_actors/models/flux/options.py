"""The options of FLUX.1, beside the engine's. Imports no torch."""

from __future__ import annotations

from omni_actors.protocol.options import Option

OPTIONS = {
    "max_sequence_length": Option(
        512, "Tokens of a prompt, to which shorter prompts are padded; the model was trained for at most 512.", least=1
    )
}
