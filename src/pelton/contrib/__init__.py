"""Pelton in other frameworks: each module needs its framework, and an extra of the same name."""
