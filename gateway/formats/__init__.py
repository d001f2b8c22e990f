"""Formats: one plugin per engine dialect, and the helpers that plugins share.

Owns: the contract of a plugin, JSON and SSE tools, the registry of installed plugins.
Must never enter: I/O, clocks, the fleet, the handler.
"""
