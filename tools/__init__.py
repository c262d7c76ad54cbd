"""Programs for those who work on Pelton itself."""
