"""The chaos run: ``python -m tests.chaos.run`` (`make chaos`); docs/reliability.md says what it shows.

The gateway and its workers are processes. Faults and what clients do follow from a seed. Everybody keeps
books, and the checker compares them.
"""
