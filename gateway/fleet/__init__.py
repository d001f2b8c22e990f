"""The workers: which there are, their state and load, and the requests queued for them.

Owns: registry, health, queue, cordons, weights.
Must never enter: a dialect, a client's connection.
"""
