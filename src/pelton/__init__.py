"""Durable streams and exclusive work, embedded in a Python program."""
