"""Run by -m, with an import of its own package."""

import json
import sys

from package import __name__ as package_name

spec = __spec__.name if __spec__ else None
found = {"name": __name__, "spec": spec, "package": package_name, "argv": sys.argv[1:], "path0": sys.path[0]}
print(json.dumps(found), flush=True)
