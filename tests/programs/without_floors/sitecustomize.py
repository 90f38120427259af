"""Let the runner try what the installed torch is too old for. Python imports this first, from PYTHONPATH."""

from dataclasses import replace

from runner.versions.features import FEATURES, RUNNER

for key in FEATURES:
    FEATURES[key] = replace(FEATURES[key], floor=FEATURES[RUNNER].floor, on_gpus=None)
