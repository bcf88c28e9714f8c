"""The voices of a deployment, by the names under which clients may ask for them."""

from __future__ import annotations

from collections.abc import Sequence

from omni_actors.protocol.errors import invalid_request

OPENAI_VOICES = (
    "alloy",
    "ash",
    "ballad",
    "cedar",
    "coral",
    "echo",
    "fable",
    "marin",
    "nova",
    "onyx",
    "sage",
    "shimmer",
    "verse",
)
"""Names that clients ask for without knowing the model: each is an alias of one of the model's own voices."""


class Voices:
    """The model's own voices, each under its name and under the aliases that stand for it.

    ``by_name`` maps every accepted name to the model's own voice: the own voices first, then ``default`` and
    :data:`OPENAI_VOICES`.
    """

    def __init__(self, own: Sequence[str]) -> None:
        default = own[0] if own else "default"
        self.by_name = {voice: voice for voice in own}
        self.by_name.setdefault("default", default)
        for place, alias in enumerate(OPENAI_VOICES):
            self.by_name.setdefault(alias, own[place % len(own)] if own else default)
        self._by_lower_name = {name.lower(): voice for name, voice in self.by_name.items()}

    def find(self, name: str) -> str | None:
        """Return the model's own voice of a name, an alias or an id, in any case; ``None`` for an unknown name."""
        return self.by_name.get(name) or self._by_lower_name.get(name.lower())

    def resolve(self, name: str | None, param: str) -> str:
        """Return the model's own voice of a name; ``None`` asks for the default voice.

        Args:
            name: The name, in any case.
            param: The field that gave the name, for the error.

        Raises:
            OmniError: 400 ``unknown_voice``.
        """
        found = self.find("default" if name is None else name)
        if found is None:
            raise invalid_request(f"Unknown voice '{name}'; known: {', '.join(self.by_name)}.", param, "unknown_voice")
        return found
