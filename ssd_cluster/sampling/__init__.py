"""Sampling parameters, processing of logits, counter-based noise, and draws that share it."""
