"""Processes that work: one, or several under a supervisor."""
