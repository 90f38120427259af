# Sourced by the site files, in the checkout, once Python is there: makes the environment if there is none, and activates it.
venv=${RUNNER_VENV:-$HOME/venvs/runner}
if [ ! -d "$venv" ]; then
  # A virtual environment, not conda's: wheels only, so nothing is solved or compiled.
  python -m venv "$venv"
  # RUNNER_VERSIONS=envs/constraints-2.4.txt where the driver is too old for the newest torch (README.md).
  "$venv/bin/pip" install -c "${RUNNER_VERSIONS:-envs/constraints.txt}" -r envs/requirements-cuda.txt
  "$venv/bin/pip" install --no-deps .
fi
source "$venv/bin/activate"
