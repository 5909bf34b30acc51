"""Mutations of handwritten messages, in the forms that brokers carry, against everything that reads from outside."""
