"""Routing policies: which worker gets a request.

Owns: classes that choose among candidates. They keep at most a position or a random generator.
Must never enter: I/O, clocks, the state of workers.
"""
