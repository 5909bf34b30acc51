"""What every test of this folder has: properties are not judged by the speed of a busy machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("relaybox", deadline=None)
settings.load_profile("relaybox")
