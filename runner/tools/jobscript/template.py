"""Fill in a scheduler's template of mpi_scripts/."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence

from runner.base.errors import UsageError
from runner.base.quantities import clock_text, exact_size_text
from runner.launch.commands import MPI_SCRIPTS


def fill_in(
    options: Namespace,
    *,
    mpi: str,
    mpirun: str = "",
    requeue: str = "",
    target: Sequence[str] = (),
    starts_ranks: bool = True,
) -> str:
    """Return the job script of a request.

    Args:
        options: the request, as the parser of jobscript returns it.
        mpi: what starts the ranks.
        mpirun: the path of this MPI's mpirun ("": the job's own).
        requeue: the directive that allows the job back into the queue ("": none).
        target: the words after ``python -m runner`` (none: the arguments of the script).
        starts_ranks: False if the target is a tool that runs once.

    Raises:
        UsageError: the template is wrong; sites may change it.
    """
    import jinja2

    templates = jinja2.Environment(  # noqa: S701 - it writes no HTML
        loader=jinja2.FileSystemLoader(MPI_SCRIPTS),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {"clock": clock_text, "size": exact_size_text, "quoted": _quoted, "words": _words}
    gpu_type, gpus = options.gpus_per_node
    values = vars(options) | {
        "gpu_type": gpu_type,
        "gpus": gpus,
        "ranks": options.ranks_per_node or gpus or 1,
        "python": sys.executable,
        "mpi": mpi,
        "mpirun": mpirun,
        "requeue": requeue,
        "target": target,
        "starts_ranks": starts_ranks,
        "site": options.site,
        "launch": options.site.launch if options.site else (),
    }
    try:
        return templates.get_template(f"{options.scheduler}.sh.j2").render(values)
    except jinja2.TemplateError as error:
        raise UsageError(f"{MPI_SCRIPTS / options.scheduler}.sh.j2: {error}", fix="correct the template") from None


def _quoted(text: str) -> str:
    """Quote a word for bash, on one line: LSF treats every line that begins with its mark as a request."""
    return shlex.quote(text).replace("\n", "'$'\\n''")


def _words(target: Sequence[str], index: str) -> str:
    """Quote the words of a target. In a job array ``{index}`` becomes the job's number, which the variable ``index`` holds."""
    number = f'"${{{index}-{{index\\}}}}"'
    return " ".join(
        number.join(_quoted(part) if part else "" for part in word.split("{index}")) or "''" for word in target
    )
