"""The parts of ``pelton elect``: candidates in processes, the pool that watches them, a table."""
