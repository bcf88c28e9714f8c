"""Versions of the contracts that plug-ins' classes are written for."""

from __future__ import annotations

CONTRACT = 1
"""The version of the contracts of engines, connectors and balancers. A change that an existing class would not stand
makes it another one."""


def contract_trouble(kind: type, word: str, version: int, *, required: bool = True) -> str:
    """Say what is wrong with the contract that a class states, as the end of a sentence; empty if nothing is. A class
    of this package states this version, whichever a class that derives from it was written for. Where it is not
    ``required``, one that states none is taken for right."""
    chain = [it for it in kind.__mro__ if it.__module__.partition(".")[0] != "omni_actors"]
    if kind not in chain:
        return ""
    stated = next((vars(it)["contract"] for it in chain if "contract" in vars(it)), None)
    if stated is None:
        return f"does not say which {word} contract it was written for: this is version {version}" if required else ""
    if stated != version:
        return f"was written for version {stated!r} of the {word} contract, and this is version {version}"
    return ""
