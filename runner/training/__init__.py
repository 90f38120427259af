"""What a workload needs: options, the run it is part of, and the loop."""
