"""The handles."""
