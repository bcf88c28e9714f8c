"""The process of one replica: ``python -m omni_actors.worker``, started by a launcher only."""

from __future__ import annotations

import sys

from omni_actors.actors.child import NotAdopted, adopt

if __name__ == "__main__":
    try:
        control = adopt()  # before any heavy import: the parent may be gone already
    except NotAdopted as error:
        sys.exit(f"omni_actors.worker: {error}")
    from omni_actors.worker.main import main

    sys.exit(main(control))
