"""From a call of a job to its message in the queue, alone or in a transaction."""
