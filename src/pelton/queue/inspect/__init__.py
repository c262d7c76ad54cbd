"""The views of a queue: jobs and how many there are, outcomes, dead letters."""
