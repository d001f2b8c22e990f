"""Authentication, TLS and limits on what a client may do.

Owns: API keys, scopes, certificates.
Must never enter: a dialect, the data path of a reply.
"""
