"""Tensor parallelism: one model over several ranks, each a process with its part of every layer.

Rank 0 lives in the process that loads the model and does all bookkeeping; the others run the same forwards in lockstep.
"""
