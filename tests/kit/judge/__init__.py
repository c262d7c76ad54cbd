"""Judges of what random programs recorded: whether the promises of queues were kept."""
