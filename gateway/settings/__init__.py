"""All settings: their sources, defaults and valid values.

Owns: defaults, limits, and the error text for a bad value. Each section of ``docs/configuration.md`` is one
file. Must never enter: what a setting does, a check that needs the fleet or the installed formats.
"""

from __future__ import annotations

from gateway.settings.cards import Cards
from gateway.settings.fields import (
    SettingsError,
    alias_of,
    flag_of,
    placeholder_of,
    value_alone_of,
    variable_of,
    variables_of,
)
from gateway.settings.model import Settings, ignored_variables, load_section, load_settings
from gateway.settings.workers import WorkerEntry

__all__ = [
    "Cards",
    "Settings",
    "SettingsError",
    "WorkerEntry",
    "alias_of",
    "flag_of",
    "ignored_variables",
    "load_section",
    "load_settings",
    "placeholder_of",
    "value_alone_of",
    "variable_of",
    "variables_of",
]
