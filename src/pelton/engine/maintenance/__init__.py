"""What runs beside the work: clocks for what falls due, sources that catch up, checks, copies and repair."""
