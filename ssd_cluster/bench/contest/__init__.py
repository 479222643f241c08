"""Several engines on the same workloads, interleaved, in runs that can be stopped and continued."""
