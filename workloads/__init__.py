"""Training programs, one module each: ``main(run, argv)``."""
