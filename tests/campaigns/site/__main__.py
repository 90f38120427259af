"""Measure binding, compile caches and staging, and write docs/results/site.md: make site

    python -m tests.campaigns.site [PART …]     binding, compile, staging (default: all)

What is compared is run in turn. Staging needs a virtual cluster, and so root. A part writes its own section of the page.
"""

from __future__ import annotations

import argparse
import os
import platform
from datetime import date

from tests.campaigns.site import binding, compiling, staging
from tests.pages import RESULTS, put

PARTS = {"binding": binding.section, "compile": compiling.section, "staging": staging.section}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make site", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=PARTS, metavar="PART")
    for part in parser.parse_args().parts or PARTS:
        lines = PARTS[part]()
        print("\n".join(lines), flush=True)
        where = f"Measured on {date.today()}: {len(os.sched_getaffinity(0))} cores, no GPU, Python {platform.python_version()}."
        put(RESULTS / "site.md", f"make site: {part}", "\n".join([where, "", *lines]))


if __name__ == "__main__":
    main()
