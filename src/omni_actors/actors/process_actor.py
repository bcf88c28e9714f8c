"""The old address of :class:`omni_actors.actors.remote.process_actor.ProcessActor`."""

from omni_actors.moved import moved_names

__getattr__ = moved_names(__name__, {"ProcessActor": "omni_actors.actors.remote.process_actor:ProcessActor"})
