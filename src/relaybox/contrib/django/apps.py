"""The app. What must be known before models are imported, which may make an outbox, is done when this is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, register
from django.db.models.signals import post_migrate

from ...drivers import django as driver
from ...errors import ConfigError
from ...settings import Settings, programs
from .config import PLACE, configured, sections

programs[PLACE] = sections


class RelayboxApp(AppConfig):
    name = "relaybox.contrib.django"
    label = "relaybox"
    verbose_name = "Relaybox"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from .tables import after_migrate

        assert driver  # by which connections are closed around listeners, whatever they are delivered by
        register(check_settings, "relaybox")
        post_migrate.connect(after_migrate, sender=self)


def check_settings(**_: Any) -> list[CheckMessage]:
    """For `manage.py check`, and before every command."""
    told: dict[str, str] = {}
    readers: tuple[Callable[[], object], ...] = (configured, Settings.load)
    for number, read in enumerate(readers, start=1):
        try:
            read()
        except ConfigError as error:
            if str(error) not in told:
                told[str(error)] = f"relaybox.E{number:03}"
    return [Error(text, id=name) for text, name in told.items()]
