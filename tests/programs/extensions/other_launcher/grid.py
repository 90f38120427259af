"""A launcher's row of the table."""

from runner.launch.launchers import Kind, Launcher

ROW = Launcher(
    name="grid",
    title="Grid",
    kind=Kind.SCHEDULER,
    requires=("GRID_TASK",),
    rank="GRID_TASK",
    size="GRID_TASKS",
    local_rank="GRID_LOCAL",
)
