"""Real servers on loopback for tests and for trying things out; never part of a wheel.

One file per server describes it (``postgres.py``); ``harness`` starts, shares and stops them;
``pytest_services`` turns each into a fixture; ``python -m services`` is the command line.
"""
