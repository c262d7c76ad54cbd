"""Work of the shared transactions, and transactions that users hold open."""
