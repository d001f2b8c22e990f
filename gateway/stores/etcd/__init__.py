"""Worker records in etcd.

Owns: etcd's HTTP API, leases, watches.
Must never enter: what a record means.
"""
