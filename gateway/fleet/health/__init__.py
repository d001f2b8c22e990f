"""Health of workers: probes, and what follows from their answers.

Owns: when a worker is probed, and which state an answer leads to.
Must never enter: the requests that a dialect uses to probe.
"""
