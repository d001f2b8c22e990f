"""Composition: which objects exist, and which of them know each other.

Owns: construction of all components from the settings.
Must never enter: logic of any kind.
"""
