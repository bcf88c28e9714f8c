"""The orchestrator: admission, the records of requests and their advancement, recovery, and drain."""

from omni_actors.orchestrator.orchestrator import Orchestrator, StartupError, open_orchestrator
from omni_actors.orchestrator.request import RequestStream

__all__ = ["Orchestrator", "RequestStream", "StartupError", "open_orchestrator"]
