"""Payloads that only those with the keys can read, and that can be erased: a data key for each tenant or person."""

from .keyring import Keyring, Kms, MasterKey
from .vault import Vault

__all__ = ["Keyring", "Kms", "MasterKey", "Vault"]
