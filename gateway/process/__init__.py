"""One gateway process, from start to exit.

Owns: listening sockets, open-file limits, graceful shutdown.
Must never enter: request handling, a dialect.
"""
