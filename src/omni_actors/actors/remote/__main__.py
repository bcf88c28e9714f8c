"""The program of an actor's process: ``python -m omni_actors.actors.remote``, started by a ``ProcessActor``."""

import sys

from omni_actors.actors.remote.host import main

if __name__ == "__main__":
    sys.exit(main())
