"""Speculative speculative decoding on Ray: targets verify, a shared pool of drafts pre-drafts likely outcomes."""

__version__ = "0.1.0"
