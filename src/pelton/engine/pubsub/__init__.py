"""Publish and subscribe between the processes that have a store open."""
