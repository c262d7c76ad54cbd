"""Pelton beside its peers: `python -m benchmarks` runs every case and writes `benchmarks/results/`.

A *case* is one question ("publish, awaiting each"); its *contenders* are Pelton and the peers that
answer it. Each measurement runs in a process of its own with a fresh directory on the same disk, and
the contenders take turns round after round, so a machine that slows down slows all of them. What is
asked of Pelton is a ratio between figures of the same round; the median of those ratios is judged.

    case.py     the vocabulary: Case, Contender, Run          asks.py    what is asked, and the verdict
    cases/      one case a file, in the order of the report   runner.py  rounds, processes, failures
    peers/      how each peer does the work                   child.py   one measurement, in its process
    ours/       how Pelton does it                            table.py   Markdown; facts.py the machine
"""
