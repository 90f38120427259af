"""Data sets of the workloads."""
