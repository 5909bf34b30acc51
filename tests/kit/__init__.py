"""What tests of every folder share."""

from . import impossible
from .conditions import INNODB, until, until_stored, wait_until
from .databases import make_database, make_postgres, need_mariadb, one, restored, rows, sqlite_url, with_driver
from .delivering import WAYS, delivering, migrated
from .outboxes import QUICK, Box, claimed, happened, in_claims, make_box, recording, stored, waiting
from .probe import PATIENCE, Probe, Seen

__all__ = [
    "INNODB",
    "PATIENCE",
    "QUICK",
    "WAYS",
    "Box",
    "Probe",
    "Seen",
    "claimed",
    "delivering",
    "happened",
    "impossible",
    "in_claims",
    "make_box",
    "make_database",
    "make_postgres",
    "migrated",
    "need_mariadb",
    "one",
    "restored",
    "recording",
    "rows",
    "sqlite_url",
    "stored",
    "until",
    "until_stored",
    "wait_until",
    "waiting",
    "with_driver",
]
