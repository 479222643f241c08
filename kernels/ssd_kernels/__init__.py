"""Kernels of ssd_cluster: each package holds a reference in torch, the accelerated versions, and one functional API."""
