"""Worker records in a file that several gateways share.

Owns: the document, its locking and its changes.
Must never enter: what a record means.
"""
