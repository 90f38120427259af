"""A distributed runner for PyTorch, launched by MPI (or whatever starts your ranks)."""

__version__ = "0.1.0"
