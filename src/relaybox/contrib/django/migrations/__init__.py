"""When `manage.py migrate` makes and upgrades the tables. A migration of yours that needs them depends on
("relaybox", "0001_tables")."""
