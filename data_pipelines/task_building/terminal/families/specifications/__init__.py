"""The kinds of programs of family ``write_program``. Each draws its parameters and gives the fields of a
``Specification``: what a person would write, a solution, and another implementation that says what is right.
"""

from data_pipelines.task_building.terminal.families.specifications.letters import matching, runs
from data_pipelines.task_building.terminal.families.specifications.numbers import (
    base,
    calculator,
    durations,
    intervals,
    roman,
)
from data_pipelines.task_building.terminal.families.specifications.words import columns, order, wrap

KINDS = (intervals, roman, calculator, durations, order, runs, columns, base, wrap, matching)
