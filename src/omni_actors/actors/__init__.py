"""An actor library on trio: supervised tasks with mailboxes, and child processes that never outlive their owner.

The library needs no model and no server. These names are its public interface:

==================================  ====================================================================================
:class:`Actor`                      ``setup``, ``receive``, ``on_signal``, ``teardown``; ``start_soon``, ``defer``
:class:`ActorRef`                   ``tell``, ``ask``, ``signal``, ``stop``, ``watch``, ``wait_ready``, ``wait_stopped``
:func:`open_supervisor`             opens the topmost :class:`Supervisor`: ``start``, ``supervisor``, ``stop``, ``tree``
:class:`Restarts`                   when a supervisor restarts, and when it gives up (:class:`Escalation`)
:func:`open_launcher`               opens a :class:`Launcher`, whose ``spawn`` starts a :class:`ChildProcess`:
                                    ``wait`` (gives a :class:`Death`), ``stop``, ``kill``, ``sock``
``omni_actors.actors.child.adopt``  the first call of such a child
:class:`ProcessActor`               an extra: an actor in a process of its own, with the same contract
:class:`MailboxFull`, …             the errors: :mod:`omni_actors.actors.errors`
==================================  ====================================================================================

Asks go downward in the tree: a parent asks its children, a child *tells* (or signals) its parent.

``docs/actors.md`` is a guide. It also says which parts of the library the omni-actors server uses.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omni_actors.actors.actor import Actor
    from omni_actors.actors.child_process import ChildProcess, Death
    from omni_actors.actors.errors import (
        ActorCrashed,
        ActorError,
        ActorStopped,
        AskCycle,
        Escalation,
        MailboxFull,
        ProcessDied,
        Refusal,
        RemoteFailure,
        Renewed,
    )
    from omni_actors.actors.process import Launcher, open_launcher, python_module
    from omni_actors.actors.ref import ActorRef, Down
    from omni_actors.actors.remote.process_actor import ProcessActor
    from omni_actors.actors.reply import Reply
    from omni_actors.actors.restarts import Restarts
    from omni_actors.actors.supervisor import Supervisor, open_supervisor
    from omni_actors.actors.tree import Branch
    from omni_actors.actors.warden_handle import WardenError

_HOMES = {
    "actor": ("Actor",),
    "errors": (
        "ActorCrashed",
        "ActorError",
        "ActorStopped",
        "AskCycle",
        "Escalation",
        "MailboxFull",
        "ProcessDied",
        "Refusal",
        "RemoteFailure",
        "Renewed",
    ),
    "child_process": ("ChildProcess", "Death"),
    "process": ("Launcher", "open_launcher", "python_module"),
    "remote.process_actor": ("ProcessActor",),
    "ref": ("ActorRef", "Down"),
    "reply": ("Reply",),
    "restarts": ("Restarts",),
    "supervisor": ("Supervisor", "open_supervisor"),
    "tree": ("Branch",),
    "warden_handle": ("WardenError",),
}

__all__ = [
    "Actor",
    "ActorCrashed",
    "ActorError",
    "ActorRef",
    "ActorStopped",
    "AskCycle",
    "Branch",
    "ChildProcess",
    "Death",
    "Down",
    "Escalation",
    "Launcher",
    "MailboxFull",
    "ProcessActor",
    "ProcessDied",
    "Refusal",
    "RemoteFailure",
    "Renewed",
    "Reply",
    "Restarts",
    "Supervisor",
    "WardenError",
    "open_launcher",
    "open_supervisor",
    "python_module",
]


def __getattr__(name: str) -> object:
    # Import late, so that a child process can call adopt() before it loads trio.
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
