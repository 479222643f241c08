"""Faults on real processes, in mid-stream: what the client sees, how soon it is noticed, how soon it is over.

``python -m support.faults`` runs them and prints the table of docs/failures.md; tests run the same cases.
"""
