"""Measure what harness costs, against floors written next to each case.

Each file asks one question and has a function ``rows(*, quick)``; ``python -m benchmarks`` prints
them all as one table.
"""
