"""From a function that a program declares to the message of one of its jobs, alone or in a transaction."""
