"""gloo, which every torch has: over TCP, for tensors on CPUs."""

from __future__ import annotations

from runner.comm.backend import Backend


class Gloo(Backend):
    name = "gloo"
    chosen_on = ("cpu",)
    why_chosen = "a single rank has nothing to exchange"  # with several ranks, the reason shown is why MPI is not used
