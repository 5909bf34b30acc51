"""The plugin's fixtures by import: they are the same whether or not relaybox is installed as a package."""

from relaybox.testing.plugin import async_outbox, outbox, relaybox_clock, relaybox_options, relaybox_url

__all__ = ["async_outbox", "outbox", "relaybox_clock", "relaybox_options", "relaybox_url"]
