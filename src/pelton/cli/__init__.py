"""The pelton command."""
