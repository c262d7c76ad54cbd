"""Work of shared transactions, and transactions that users hold open."""
