"""How each peer does the work of a case, in the fastest form its own documentation offers."""
