"""An extra of the actor library: actors that run in a process of their own and keep the contract of a local actor.

The omni-actors server does not use this package: its workers have frames of their own (:mod:`omni_actors.protocol`).
:class:`~omni_actors.actors.remote.process_actor.ProcessActor` stands in the parent process for the actor;
:mod:`~omni_actors.actors.remote.host` runs the actor in its process; :mod:`~omni_actors.actors.remote.wire` has the
frames that travel between the two.
"""
