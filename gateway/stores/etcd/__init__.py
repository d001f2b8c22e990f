"""The store in etcd.

Owns: the client of etcd's HTTP API, leases, watches.
Must never enter: what a record means.
"""
