"""Discovery stores: where worker records and cordons are kept.

Owns: records, and their exchange with a file, etcd or Kubernetes.
Must never enter: health, routing, settings, a dialect.
"""
