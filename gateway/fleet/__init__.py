"""The workers: which there are, their state and load, and the requests queued for them.

Owns: registry, membership, registration, following a store, health, queue, cordons, weight versions.
Must never enter: a dialect, a client's connection.
"""
