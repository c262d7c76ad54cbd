"""Forms of Pelton that were built only to be measured; each has a decision."""
