"""What harness costs, against floors written beside each case.

Each file asks one question and has a function ``rows(*, quick)``; ``python -m benchmarks`` prints
them all as one table.
"""
