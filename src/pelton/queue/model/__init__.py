"""What a queue stores and decides: states, names, rules, decisions, and the records of an attempt. Pure."""
