"""Bridges between the demo's stages."""

from __future__ import annotations

from omni_actors.connectors.payload import Payload, text_payload
from omni_actors.models.omni_demo.sentences import SentenceSplitter


class Sentences:
    """Turns pieces of an answer into sentences, each as soon as the sentence is complete. Speech leaves out blocks of
    code."""

    def __init__(self) -> None:
        self._splitter = SentenceSplitter()

    def feed(self, payload: Payload | None, end: bool) -> list[Payload]:
        text = "" if payload is None else payload.meta["text"]
        return [text_payload(sentence) for sentence in self._splitter.push(text, end)]
