"""Seeing what happens: observers of lifecycle.py for logs, Prometheus and OpenTelemetry. None is imported unasked."""
