"""WHAT we ask a database: ops that yield statements, named .sql files, migrations.

A folder per product, and in it one per dialect with `sql/` and `migrations/`; `shared/` is SQL that every product uses.
"""
