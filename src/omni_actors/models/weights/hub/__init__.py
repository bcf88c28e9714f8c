"""Public checkpoints, fetched from the hub into the hub client's own cache, which all programs share.

:mod:`.download` fetches in a process of its own (:mod:`.child`), the only process that imports the hub's client.
:mod:`.wanted` chooses the needed files of a repository, :mod:`.records` keeps the files that a pull intends to fetch,
and :mod:`.companions` finds further repositories named by a checkpoint.
"""
