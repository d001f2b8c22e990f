"""Several gateway processes that share one port.

Owns: fork and supervision, the channel between processes, sums over processes.
Must never enter: request handling, a dialect.
"""
