"""The author's kit: every name for the author of a pipeline, an engine, a connector or a balancer, in one import::

    from omni_actors.author import GenerationAdapter, Piece, Result, Work, audio_piece

A name is imported from its module on first use, so this module itself imports neither torch nor any other part of the
package. ``docs/plugins.md`` describes the use of the names; each name is documented at its definition. The names are a
public contract: a name that goes, or takes or returns something else, is announced and kept for a release.

    >>> from omni_actors.author import Payload, text_payload
    >>> payload = text_payload("Hello")
    >>> isinstance(payload, Payload), payload.kind
    (True, 'text')
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omni_actors.connectors.connector import Connector as Connector
    from omni_actors.connectors.link import Link as Link
    from omni_actors.connectors.payload import Payload as Payload
    from omni_actors.connectors.payload import pcm_payload as pcm_payload
    from omni_actors.connectors.payload import text_payload as text_payload
    from omni_actors.connectors.unix import UnixLink as UnixLink
    from omni_actors.pipelines.declaration import Edge as Edge
    from omni_actors.pipelines.declaration import Parameter as Parameter
    from omni_actors.pipelines.declaration import Pipeline as Pipeline
    from omni_actors.pipelines.declaration import PipelineFacts as PipelineFacts
    from omni_actors.pipelines.declaration import Port as Port
    from omni_actors.pipelines.declaration import Stage as Stage
    from omni_actors.pipelines.declaration import Task as Task
    from omni_actors.protocol.errors import ErrorInfo as ErrorInfo
    from omni_actors.protocol.errors import OmniError as OmniError
    from omni_actors.protocol.errors import invalid_request as invalid_request
    from omni_actors.protocol.frames import Hello as Hello
    from omni_actors.protocol.options import Option as Option
    from omni_actors.protocol.params import ImageGeneration as ImageGeneration
    from omni_actors.protocol.params import LoraScale as LoraScale
    from omni_actors.protocol.params import Prompt as Prompt
    from omni_actors.protocol.params import Sampling as Sampling
    from omni_actors.protocol.params import Speech as Speech
    from omni_actors.protocol.params import Transcription as Transcription
    from omni_actors.protocol.request import MediaChunk as MediaChunk
    from omni_actors.protocol.request import Request as Request
    from omni_actors.protocol.request import StepProgress as StepProgress
    from omni_actors.protocol.request import TextDelta as TextDelta
    from omni_actors.protocol.request import Usage as Usage
    from omni_actors.stages.balancers import Balancer as Balancer
    from omni_actors.stages.balancers import Candidate as Candidate
    from omni_actors.worker.bridge import Bridge as Bridge
    from omni_actors.worker.checks import InputError as InputError
    from omni_actors.worker.checks import OutputError as OutputError
    from omni_actors.worker.checks import TensorSpec as TensorSpec
    from omni_actors.worker.checks import check_input as check_input
    from omni_actors.worker.engine import Engine as Engine
    from omni_actors.worker.engine import Outbox as Outbox
    from omni_actors.worker.engine import Work as Work
    from omni_actors.worker.engines.autoregressive.adapter import AutoregressiveAdapter as AutoregressiveAdapter
    from omni_actors.worker.engines.autoregressive.adapter import PromptInput as PromptInput
    from omni_actors.worker.engines.autoregressive.decoder import Decoder as Decoder
    from omni_actors.worker.engines.autoregressive.decoder import StepInputs as StepInputs
    from omni_actors.worker.engines.autoregressive.decoder import StepOutput as StepOutput
    from omni_actors.worker.engines.diffusion.adapter import DiffusionAdapter as DiffusionAdapter
    from omni_actors.worker.engines.diffusion.cursor import Cursor as Cursor
    from omni_actors.worker.engines.diffusion.cursor import Footprint as Footprint
    from omni_actors.worker.engines.oneshot.adapter import GenerationAdapter as GenerationAdapter
    from omni_actors.worker.engines.oneshot.codec import CodecAdapter as CodecAdapter
    from omni_actors.worker.engines.oneshot.outputs import Piece as Piece
    from omni_actors.worker.engines.oneshot.outputs import Result as Result
    from omni_actors.worker.engines.oneshot.outputs import audio_piece as audio_piece
    from omni_actors.worker.engines.oneshot.outputs import pcm16 as pcm16
    from omni_actors.worker.isolation import Faults as Faults

_WHERE = {
    # The declaration of a pipeline; the serving process imports these.
    "Pipeline": "pipelines.declaration",
    "Stage": "pipelines.declaration",
    "Port": "pipelines.declaration",
    "Edge": "pipelines.declaration",
    "Task": "pipelines.declaration",
    "Parameter": "pipelines.declaration",
    "PipelineFacts": "pipelines.declaration",
    "Option": "protocol.options",
    # Sections of a request, requests and their events.
    "Request": "protocol.request",
    "Prompt": "protocol.params",
    "Sampling": "protocol.params",
    "Speech": "protocol.params",
    "Transcription": "protocol.params",
    "ImageGeneration": "protocol.params",
    "LoraScale": "protocol.params",
    "TextDelta": "protocol.request",
    "MediaChunk": "protocol.request",
    "StepProgress": "protocol.request",
    "Usage": "protocol.request",
    # Payloads between stages.
    "Payload": "connectors.payload",
    "text_payload": "connectors.payload",
    "pcm_payload": "connectors.payload",
    "Bridge": "worker.bridge",
    "TensorSpec": "worker.checks",
    "check_input": "worker.checks",
    # Adapters, which engines drive.
    "Hello": "protocol.frames",
    "Work": "worker.engine",
    "GenerationAdapter": "worker.engines.oneshot.adapter",
    "Piece": "worker.engines.oneshot.outputs",
    "Result": "worker.engines.oneshot.outputs",
    "audio_piece": "worker.engines.oneshot.outputs",
    "pcm16": "worker.engines.oneshot.outputs",
    "CodecAdapter": "worker.engines.oneshot.codec",
    "AutoregressiveAdapter": "worker.engines.autoregressive.adapter",
    "DiffusionAdapter": "worker.engines.diffusion.adapter",
    "Cursor": "worker.engines.diffusion.cursor",
    "Footprint": "worker.engines.diffusion.cursor",
    "Decoder": "worker.engines.autoregressive.decoder",
    "PromptInput": "worker.engines.autoregressive.adapter",
    "StepInputs": "worker.engines.autoregressive.decoder",
    "StepOutput": "worker.engines.autoregressive.decoder",
    # Engines, connectors, balancers.
    "Engine": "worker.engine",
    "Outbox": "worker.engine",
    "Faults": "worker.isolation",
    "Connector": "connectors.connector",
    "Link": "connectors.link",
    "UnixLink": "connectors.unix",
    "Balancer": "stages.balancers",
    "Candidate": "stages.balancers",
    # Errors.
    "OmniError": "protocol.errors",
    "ErrorInfo": "protocol.errors",
    "invalid_request": "protocol.errors",
    "InputError": "worker.checks",
    "OutputError": "worker.checks",
}
"""Name → module of this package. The modules of :data:`TORCH` import torch."""

TORCH = frozenset({"CodecAdapter", "AutoregressiveAdapter", "Decoder", "PromptInput", "StepInputs", "StepOutput"})
"""Names whose modules import torch: for adapters, which run in workers, and not for a pipeline's declaration."""

__all__ = list(_WHERE)


def modules() -> Mapping[str, str]:
    """Return every exported name with the module of this package that defines the name, for the reference page."""
    return dict(_WHERE)


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    found = getattr(import_module(f"omni_actors.{where}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
