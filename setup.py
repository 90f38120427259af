"""What pyproject.toml cannot say: the build writes elsewhere if this user may not write to the checkout."""

import atexit
import os
import shutil
import tempfile

from setuptools import setup

options = {}
checkout = os.path.dirname(os.path.abspath(__file__))
written = [os.path.join(checkout, name) for name in ("", "build", "torch_mpi_runner.egg-info")]
if not all(os.access(path, os.W_OK) for path in written if os.path.exists(path)):
    elsewhere = tempfile.mkdtemp(prefix="torch-mpi-runner-build-")
    atexit.register(shutil.rmtree, elsewhere, ignore_errors=True)
    options = {"egg_info": {"egg_base": elsewhere}, "build": {"build_base": elsewhere}}
setup(options=options)
