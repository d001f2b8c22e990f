"""The worker side of the data plane: an HTTP/1.1 client.

Owns: connections to workers, their pool, name resolution, request heads.
Must never enter: routing, a dialect, a client's connection.
"""
