"""Flows: jobs that run after each other, with each other's results. A flow's log decides, a reactor carries out."""
