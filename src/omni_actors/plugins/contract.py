"""Versions of the contracts for which plug-ins' classes are written."""

from __future__ import annotations

CONTRACT = 1
"""The version of the contracts of engines, connectors and balancers. An incompatible change makes a new version."""


def contract_trouble(kind: type, word: str, version: int, *, required: bool = True) -> str:
    """Return the reason why a class does not fit the contract, as the end of a sentence; empty if the class fits.

    A class of this package states the present version, which does not count for classes derived from it. A class
    without a stated version fits unless ``required``.
    """
    chain = [it for it in kind.__mro__ if it.__module__.partition(".")[0] != "omni_actors"]
    if kind not in chain:
        return ""
    stated = next((vars(it)["contract"] for it in chain if "contract" in vars(it)), None)
    if stated is None:
        return f"does not say which {word} contract it was written for: this is version {version}" if required else ""
    if stated != version:
        return f"was written for version {stated!r} of the {word} contract, and this is version {version}"
    return ""
