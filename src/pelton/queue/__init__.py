"""Jobs: durable, typed, retried, exclusive by key."""
