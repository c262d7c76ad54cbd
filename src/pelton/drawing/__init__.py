"""Pages with drawings: one HTML file each, self-contained, for whoever has something to show. Pure."""
