"""Needs a module beside it, and prints what the compiler and the way it was started make of it. (No future imports here.)"""

import dataclasses
import os

import sibling  # noqa: F401 - that it is found is what is tested


@dataclasses.dataclass
class A:
    lr: float = 1.0


print([f.type for f in dataclasses.fields(A)], os.path.isabs(__file__))
