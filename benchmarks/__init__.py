"""Pelton beside its peers: `python -m benchmarks` runs every case and writes `benchmarks/results/`.

A *case* is one question ("publish, awaiting each"); its *contenders* are Pelton and its peers. Each
measurement runs in its own process with a fresh directory on the same disk, and the contenders take
turns round after round, so a machine that slows down slows all of them. A target for Pelton is a ratio
between figures of the same round; the verdict is about the median of those ratios.

    case.py     the vocabulary: Case, Contender, Run            asks.py    targets and verdicts
    cases/      one case per file, in the order of the report   runner.py  rounds, processes, failures
    peers/      how each peer does the work                     child.py   one measurement, in its process
    ours/       how Pelton does it                              table.py   Markdown; facts.py the machine
"""
