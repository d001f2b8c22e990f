"""How hypothesis runs here: as many examples as it likes, however slow the machine is at the moment."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("formats", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("formats")
