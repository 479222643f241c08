"""Reads round traces: summary, timeline, and the statistics that the simulator can use."""
