"""Prefork: several gateway processes that share one port.

Owns: the fork and supervision of processes, the channel between them, sums over all of them.
Must never enter: request handling, a dialect.
"""
