"""The client side of the data plane: an HTTP/1.1 server.

Owns: sockets from clients, request parsing, response framing, client limits and deadlines.
Must never enter: routing, a dialect, connections to workers.
"""
