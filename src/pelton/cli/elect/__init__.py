"""What ``pelton elect`` is made of: candidates in processes, whoever watches them, a table."""
