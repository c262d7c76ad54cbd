"""The parts of `pelton demo`: a year of real flights as exclusive jobs, checked and drawn.

    flights      the input: every flight that left New York in 2013, in time order
    propagation  the work: how one aircraft hands a delay from flight to flight (pure)
    record       what a run leaves behind: states, attempts, dead letters, workers
    checks       the promises, each checked against the record
    figures      the numbers that the report and the picture share
    report       the verdict and the figures, printed
    picture      the same, drawn into one HTML file (charts: its parts)
    lake         the streams through Spark: a Delta table, tables of delay, a report on the jobs
    screen       the display while it runs

Nothing here knows the engine, reads a clock or starts a process: the driver of the run passes in what
happened.
"""
