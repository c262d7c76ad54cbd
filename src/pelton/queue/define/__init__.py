"""Jobs as a program declares them: functions with names, rules and typed arguments; their handles."""
