from runner.base.errors import RunnerError as RunnerError
from runner.base.errors import UsageError as UsageError
from runner.base.settings import option as option
from runner.parallel.task import Plan as Plan
from runner.parallel.task import Task as Task
from runner.starting.start import start as start
from runner.training.loggers.logger import LoggedRun as LoggedRun
from runner.training.loggers.logger import Logger as Logger
from runner.training.model import Model as Model
from runner.training.preemption import Preempted as Preempted
from runner.training.run import Run as Run
from runner.training.settings import Settings as Settings
from runner.training.summary import Result as Result
from runner.training.summary import State as State

__version__: str
