"""Open-loop load on a running endpoint."""
