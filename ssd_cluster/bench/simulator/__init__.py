"""A discrete-event model of targets and drafts: what a deployment would do, from given times and statistics.

It runs in virtual time and is deterministic by seed. Fan-out planners, outcome statistics, the waiting rule and the
draft's scheduler are the engine's own code; forwards, links and outcomes are drawn from laws.
"""
