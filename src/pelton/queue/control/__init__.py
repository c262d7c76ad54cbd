"""What an operator does with a queue: looks at its jobs, pauses, cancels, redrives, and sets schedules."""
