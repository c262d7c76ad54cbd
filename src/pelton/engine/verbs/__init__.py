"""The administrative verbs: one handler per request."""
