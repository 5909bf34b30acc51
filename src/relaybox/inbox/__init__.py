"""The inbox: every message of another service is accepted once, and takes effect once."""
