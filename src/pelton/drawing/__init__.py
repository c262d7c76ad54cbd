"""Pages with charts: one self-contained HTML file each. Pure."""
