"""JSON without decoding all of it: member spans, splices, token-id arrays, bounded steps.

Owns: reading and editing the original bytes of a JSON document. Must never enter: a dialect, I/O.
"""
