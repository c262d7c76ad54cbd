"""Reads: the batch and the streaming reader, their partitions and offsets, and the tasks' side."""
