"""Public checkpoints: fetched from the hub into the hub client's own cache, where every other program finds them too.

``bring`` (:mod:`.download`) fetches in a process of its own (:mod:`.child`), the only one that imports the hub's
client. :mod:`.wanted` says which files of a repository are needed, :mod:`.records` which a pull has set out to fetch,
and :mod:`.companions` which other repositories a checkpoint names.
"""
