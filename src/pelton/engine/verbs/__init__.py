"""The administrative verbs: one handler a request."""
