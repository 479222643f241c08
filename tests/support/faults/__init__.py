"""Faults on real processes, in mid-stream: what the client sees, how soon it is noticed, how soon it is over."""
