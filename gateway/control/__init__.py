"""The control plane: the HTTP routes beside the inference endpoints.

Owns: health, metrics, workers, aborts, control calls, events, OpenAPI.
Must never enter: the proxying of an exchange, a dialect.
"""
