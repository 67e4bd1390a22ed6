"""Trainers' files: read one into a Scenario, or write one to start a Scenario's run from."""

from .errors import TrainerFileError
from .reading import TrainerFile, read_trainer_file
from .settings import Assumed, Unused, Used
from .table import Trainer, trainers
from .writing import WRITERS, write_trainer_file

WRITABLE = tuple(WRITERS)
"""The trainers that `write_trainer_file` writes for."""

__all__ = [
    "WRITABLE",
    "Assumed",
    "Trainer",
    "TrainerFile",
    "TrainerFileError",
    "Unused",
    "Used",
    "read_trainer_file",
    "trainers",
    "write_trainer_file",
]
