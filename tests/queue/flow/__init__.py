"""Tests of flows."""
