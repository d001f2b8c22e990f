"""Routing policies: which worker gets a request.

Owns: pure functions that choose among candidates.
Must never enter: I/O, clocks, the state of workers.
"""
