"""omni_actors serves models that are made of several parts, each part a supervised worker process."""

from omni_actors.version import __version__

__all__ = ["__version__"]
