"""The store in a file that several gateways share.

Owns: the document, its lock and its changes.
Must never enter: what a record means.
"""
