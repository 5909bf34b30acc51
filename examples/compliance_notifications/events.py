"""What licensing tells the others, and where it goes. The service, the relay and the consumer share this file."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from relaybox import Contracts

contracts = Contracts()


@contracts.event("license_status_changed", to="domain-events", aggregate_type="license")
class LicenseStatusChanged(BaseModel):
    licenseId: str
    storeId: str
    status: Literal["pending", "verified", "rejected"]
    reason: str | None = None
