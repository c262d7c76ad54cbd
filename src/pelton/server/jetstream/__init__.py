"""JetStream for clients: the API on its subjects, storing, pulls, acks and direct gets."""
