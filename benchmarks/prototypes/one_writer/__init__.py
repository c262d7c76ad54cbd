"""One process that writes for all: a measurement (docs/decisions/0030), and no part of Pelton.

``python -m benchmarks.prototypes.one_writer`` drains jobs with several processes that write by themselves, and with
several of which only one has the store open: the others send it what they pull, settle and publish, through a Unix
socket. Nothing here survives the death of the writer.
"""
