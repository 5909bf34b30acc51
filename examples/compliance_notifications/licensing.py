"""The licensing service: a license and the event about it change in one transaction. LICENSING_URL is its database.

python licensing.py upload L-7 green-leaf
python licensing.py verify L-7
python licensing.py reject L-7 "the scan cannot be read"
"""

from __future__ import annotations

import os
import sys

import psycopg
from events import contracts

from relaybox import Outbox

TABLE = "CREATE TABLE IF NOT EXISTS licenses (id text PRIMARY KEY, store_id text NOT NULL, status text NOT NULL)"


class Licensing:
    def __init__(self, url: str) -> None:
        self.db = psycopg.connect(url, autocommit=True)
        self.outbox = Outbox(url, contracts=contracts)

    def migrate(self) -> None:
        self.db.execute(TABLE)
        self.outbox.migrate()

    def upload(self, license_id: str, store_id: str) -> None:
        with self.db.transaction():
            self.db.execute("INSERT INTO licenses VALUES (%s, %s, 'pending')", (license_id, store_id))
            self._announce(license_id, store_id, "pending")

    def decide(self, license_id: str, status: str, reason: str | None = None) -> None:
        with self.db.transaction():
            update = "UPDATE licenses SET status = %s WHERE id = %s RETURNING store_id"
            row = self.db.execute(update, (status, license_id)).fetchone()
            if row is None:
                raise LookupError(f"there is no license {license_id}")
            self._announce(license_id, row[0], status, reason)

    def _announce(self, license_id: str, store_id: str, status: str, reason: str | None = None) -> None:
        """A status that is not in the contract is refused here, and the transaction with it."""
        change = {"licenseId": license_id, "storeId": store_id, "status": status, "reason": reason}
        self.outbox.write(self.db, contracts.make("license_status_changed", change, key=license_id))

    def close(self) -> None:
        self.outbox.close()
        self.db.close()


def main(*arguments: str) -> None:
    licensing = Licensing(os.environ["LICENSING_URL"])
    licensing.migrate()
    match arguments:
        case ["upload", license_id, store_id]:
            licensing.upload(license_id, store_id)
        case ["verify", license_id]:
            licensing.decide(license_id, "verified")
        case ["reject", license_id, reason]:
            licensing.decide(license_id, "rejected", reason)
        case _:
            sys.exit(__doc__)
    licensing.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
