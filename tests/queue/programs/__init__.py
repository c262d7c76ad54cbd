"""Random programs on queues, and the workers that run their jobs; what happened is checked."""
