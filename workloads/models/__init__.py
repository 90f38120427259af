"""Models of the workloads."""
