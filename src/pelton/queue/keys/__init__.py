"""Exclusive keys for a backend that has no such feature: a NATS cluster (docs/decisions/0017)."""
