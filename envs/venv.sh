# Sourced by the site files, in the checkout, once Python is there: makes the environment if there is none, and activates it.
venv=${RUNNER_VENV:-$HOME/venvs/runner}
if [ ! -d "$venv" ]; then
  # A virtual environment, not conda's: wheels only, so nothing is solved or compiled.
  python -m venv "$venv"
  "$venv/bin/pip" install -r envs/requirements-cuda.txt
  "$venv/bin/pip" install --no-deps .
fi
source "$venv/bin/activate"
