"""Seeing what happens: observers of facts.py for logs, Prometheus and OpenTelemetry. None is imported unasked."""
