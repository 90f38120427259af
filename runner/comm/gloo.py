"""gloo, which every torch has: over TCP, for tensors on CPUs."""

from __future__ import annotations

from runner.comm.backend import Backend


class Gloo(Backend):
    name = "gloo"
    chosen_on = ("cpu",)
    why_chosen = "one rank talks to nobody"  # where there are more, and not MPI, what keeps from that is said
