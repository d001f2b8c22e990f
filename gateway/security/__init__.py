"""Authentication and TLS.

Owns: API keys, the access scopes of routes, certificates.
Must never enter: a dialect, the data path of a reply.
"""
