"""Modules at their old addresses: ``omni_actors.worker.engines.codec`` is ``_moved/codec.py``.

Each only says where its names are now. They are for plug-ins and deploy files written before the engines had packages.
"""
