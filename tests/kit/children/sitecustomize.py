"""Imported by every Python program that a test starts under the switch of `kit.as_roles`: it is the member as well."""

from kit import as_roles

as_roles.install_in_a_child()
