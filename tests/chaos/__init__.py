"""Faults against real processes and sockets, for as long as one likes: ``make chaos T=600``.

A served deployment under a steady load of all kinds of clients, while workers are killed, stopped and replaced,
connections reset and flooded, and its log and its shared memory run full. Nothing may hang, no answer that completes
may differ from an undisturbed one, and in the end nothing may be left: processes, descriptors, memory maps, gauges.
"""
