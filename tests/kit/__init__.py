"""What tests of every folder share."""

from .delivering import WAYS, delivering, migrated

__all__ = ["WAYS", "delivering", "migrated"]
