"""The pre-release tests of topics: load, chaos, contention, isolation, partitions. `make ga` runs them and reports.

One rule scales them to the machine. The figures of the tests suppose a server that takes 50,000 single-row inserts a
second; `machine.py` measures what this one takes, and every rate and amount is multiplied by measured / 50,000, at most
1. Durations are divided by 60, so an hour is a minute; `--full` runs the original ones.
"""
