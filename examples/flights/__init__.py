"""The demo: a year of real flights as exclusive jobs, a worker killed on the way, checked and drawn. ``make demo``.

flights  the input: every flight that left New York in 2013, in time order
work     how one aircraft hands a delay from flight to flight (pure), and the jobs that do it
record   what a run leaves behind: states, attempts, dead letters, workers
checks   the promises, each checked against the record
picture  the figures, drawn into one HTML file
lake     the streams through Spark: a Delta table, tables of delay, a report on the jobs
screen   the display while it runs, the live page, and the verdict at the end
run      the driver: it alone starts processes, and passes what happened on to the others
"""
