"""Cordons: which workers get no new requests, and why, the same in all gateways.

Owns: the replicated last-writer-wins map of reasons, and its exchange with stores and other processes.
Must never enter: health states, the choice of a worker.
"""
