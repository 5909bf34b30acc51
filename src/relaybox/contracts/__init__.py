"""Contracts: for every type and version of event, where it goes and what it must look like.

    contracts = Contracts()
    contracts.add("OrderPlaced", to="orders", aggregate_type="Order", payload=OrderPlaced)

    outbox = Outbox(url, contracts=contracts)                       # write() refuses what breaks its contract
    event = contracts.make("OrderPlaced", OrderPlaced(7), key="order-7")

A relay resolves destinations only here. What breaks its contract is `ContractViolation`: never retried, a dead
letter with the reason. The reason names a field and a kind of error, never a value.
"""

from .contract import VERSION_HEADER, Contract, version_of
from .registry import Contracts

__all__ = ["VERSION_HEADER", "Contract", "Contracts", "version_of"]
