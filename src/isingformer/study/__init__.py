"""The paper's study: a grid of trainings, its records, tables, figures and report. Start with `plan.py`."""

from .plan import Plan, StudyData, read_plan
from .record import Cell, Record
from .results import Written, write_results
from .runner import Outcome, run_study
from .shards import Shard, parse_shard
from .store import Store

__all__ = [
    "Cell",
    "Outcome",
    "Plan",
    "Record",
    "Shard",
    "Store",
    "StudyData",
    "Written",
    "parse_shard",
    "read_plan",
    "run_study",
    "write_results",
]
