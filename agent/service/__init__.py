"""The HTTP service: the command line's handlers behind FastAPI, searches in worker processes, a page for people.

Imported by ``inferasim serve`` alone. The HTTP process parses, looks up and streams; quick questions (a prediction, a
launch command) go to a small pool of processes, searches and sweeps to worker processes that take jobs from the ledger
(:mod:`ledger.queue`).
"""
