"""Modules for workloads: settings, the run, and the training loop."""
