"""The library without a server: the same verbs under trio, under asyncio, and in code that blocks.

All three run the same worker processes as ``serve``.
"""

from omni_actors.entrypoints.offline.asyncio_bridge import AsyncioOmni, open_omni_asyncio
from omni_actors.entrypoints.offline.blocking import Omni
from omni_actors.entrypoints.offline.deployment import AsyncOmni, open_omni
from omni_actors.entrypoints.offline.output import Choice, Output, collect
from omni_actors.protocol.errors import OmniError

__all__ = [
    "AsyncOmni",
    "AsyncioOmni",
    "Choice",
    "Omni",
    "OmniError",
    "Output",
    "collect",
    "open_omni",
    "open_omni_asyncio",
]
