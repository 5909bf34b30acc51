"""Python peers, each run in the peers' own virtualenv."""
