"""Background work and upkeep: timers for deadlines, source catch-up, checks, copies and repair."""
