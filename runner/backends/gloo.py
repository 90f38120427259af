"""gloo, which every torch has: over TCP, for tensors on CPUs."""

from __future__ import annotations

from runner.backends.backend import Backend
from runner.job import Job


class Gloo(Backend):
    name = "gloo"
    chosen_on = ("cpu",)
    why_chosen = "a single rank has nothing to exchange"  # with several ranks, the reason shown is why MPI is not used

    def unavailable_reason(self, job: Job) -> str:
        """Return why gloo cannot be used; "" if it can. A single rank needs no interface."""
        hosts = job.topology.hosts_where("absent_interfaces", bool)
        if job.size == 1 or not hosts:
            return ""
        absent = {name for names in job.topology.records.of_field("absent_interfaces")[0] for name in names}
        return (
            f"GLOO_SOCKET_IFNAME names {', '.join(sorted(absent))}, which {' and '.join(hosts)} lack{'s' * (len(hosts) == 1)}; "
            "unset it, or name one that all hosts have"
        )
