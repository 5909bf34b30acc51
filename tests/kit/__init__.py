"""What tests of every folder share."""

from .delivering import WAYS, delivering, migrated
from .waiting import INNODB, until, until_stored, wait_until

__all__ = ["INNODB", "WAYS", "delivering", "migrated", "until", "until_stored", "wait_until"]
