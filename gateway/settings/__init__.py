"""Every setting, where it comes from and what it may be.

Owns: defaults, limits, and the text a user sees for a bad value: a section of ``docs/configuration.md`` is a
file here. Must never enter: what a setting does, a check that needs the fleet or the installed formats.
"""

from __future__ import annotations

from gateway.settings.fields import SettingsError, alias_of, flag_of, variable_of, variables_of
from gateway.settings.model import Settings, ignored_variables, load_settings
from gateway.settings.workers import WorkerEntry

__all__ = [
    "Settings",
    "SettingsError",
    "WorkerEntry",
    "alias_of",
    "flag_of",
    "ignored_variables",
    "load_settings",
    "variable_of",
    "variables_of",
]
