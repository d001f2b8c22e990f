"""The chaos run: ``python -m tests.chaos.run`` (`make chaos`); docs/reliability.md describes its results.

The gateway, its workers and its clients are processes. The faults and the clients' requests follow from a
seed. Every process keeps records, and the checker compares them.
"""
