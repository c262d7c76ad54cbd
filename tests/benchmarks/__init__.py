"""The bench's arithmetic, verdicts and writers; nothing here measures time."""
