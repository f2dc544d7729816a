"""Declared searches: equal trials for all methods of one, judged on validation.

What is searched is written down in :mod:`geof_paper.grid.search_plans`. One benchmark of each group
leads: what is found there goes into the presets of all in the group. Every method has its space
(:data:`geof_paper.searches.SEARCHES`) and as many trials as the others: the first is the preset it
began with, each later one the best so far with a few options drawn anew. The test part is never
read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from geof.errors import ConfigError
from geof.executor import Executor
from geof.io import read_yaml, write_atomically
from geof.methods.interface import TaskKind
from geof.methods.registry import get_method
from geof.training.config import RunConfig
from geof.training.sweep import Order, Study
from geof.training.trials import Runner, TrialTrainer
from geof_paper.grid.cells import Benchmark, Row
from geof_paper.grid.matched import write_matched
from geof_paper.grid.preset_text import as_yaml, lines_of, sections, values_of
from geof_paper.grid.records import read_runs
from geof_paper.grid.search_plans import PLANS, Plan, plan_of
from geof_paper.searches import SEARCHES


@dataclass(frozen=True)
class Search:
    """One method on the leader of a group; raw files may lie in a folder of their own."""

    method: str
    benchmark: Benchmark
    data_root: Path | None = None

    @property
    def plan(self) -> Plan:
        """The declared search it is a part of."""
        return plan_of(self.method)

    @property
    def preset(self) -> str:
        """The preset it begins with."""
        return self.plan.preset(self.method, self.benchmark[0])

    @property
    def name(self) -> str:
        """Of its folder."""
        task, dataset = self.benchmark
        return f"{task}-{dataset}-{self.method}"

    @cached_property
    def declared(self) -> dict[str, Any]:
        """What its file says: the budget of a trial (``training``), the ``space``, and ``fixed``.

        The last are options, in sections, that every trial has, whatever the preset says. A
        leader's own budget, or what is searched on it alone, stands below its name.
        """
        task, dataset = self.benchmark
        file = SEARCHES / self.method / f"{task}.yaml"
        tree = read_yaml(file)
        if tree.keys() - {"fixed"} != {"training", "space"}:
            raise ConfigError(
                f"Expected 'training', 'space' and perhaps 'fixed' in '{file}' (got "
                f"{sorted(tree)})."
            )
        budget, space = (_for_leader(tree[key], dataset) for key in ("training", "space"))
        return {"training": budget, "space": space, "fixed": tree.get("fixed", {})}

    @cached_property
    def base(self) -> RunConfig:
        """The preset, with the budget of a trial."""
        task, dataset = self.benchmark
        about = {"method": self.method, "task": task, "preset": self.preset}
        about |= {"split": self.plan.splits[0]}
        data = {"dataset": dataset}
        data |= {} if self.data_root is None else {"data_root": str(self.data_root)}
        declared = self.declared
        return RunConfig.parse({**about, "data": data}, declared["training"], declared["fixed"])

    def study(self, work: Path) -> Study:
        """Return its study in the folder of all."""
        plan = self.plan
        order = Order(
            trials=plan.trials,
            splits=plan.splits,
            sampler="near",
            try_base=True,
            metric=self.metric,
        )
        return Study(work / self.name, order, self.base, self.declared["space"])

    @property
    def metric(self) -> str:
        """What judges a trial."""
        task, dataset = self.benchmark
        ranked = task == "link" or dataset in ("BBBP", "ogbg-molhiv")
        return "roc_auc" if ranked else "accuracy"

    def run(self, work: Path, executor: Executor, should_stop: Callable[[], bool]) -> None:
        """Train the trials that are missing."""
        study = self.study(work)
        with study.held():
            if study.exists():
                study.require_same(Study.read(study.folder))
            study.write()
            trainer = TrialTrainer(Runner(tasks=len(self.plan.splits), patience=float("inf")))
            study.open().run(trainer, executor=executor, should_stop=should_stop)

    def longest_seconds(self, results: Path) -> float | None:
        """Return what its trials take if none ends early, ``None`` where no epoch was timed."""
        row = Row(*self.benchmark, self.method, self.preset)
        known = [run.seconds_per_epoch for run in read_runs(results) if run.row == row]
        epochs = self.base.training.epochs + self.base.pretraining.epochs
        count = self.plan.trials * len(self.plan.splits)
        return count * epochs * median(known) if known else None

    def trials(self, work: Path) -> list[TrialRow]:
        """Return what is finished of it."""
        study = self.study(work)
        if not study.exists():
            return []
        task, dataset = self.benchmark
        revision = get_method(self.method).revision
        return [
            TrialRow(
                task=task,
                dataset=dataset,
                method=self.method,
                trial=trial.number,
                values=dict(trial.values),
                validation=trial.validation,
                splits=dict(trial.splits),
                seconds=round(trial.seconds, 1),
                revision=revision,
                training=self.declared["training"],
                error=trial.error,
                plan=self.plan.name,
                fixed=self.declared["fixed"],
            )
            for trial in sorted(study.open().finished(), key=lambda trial: trial.number)
        ]


def _for_leader(section: dict[str, Any], dataset: str) -> dict[str, Any]:
    """Return what holds for all with what holds for a leader alone."""
    common = {key: value for key, value in section.items() if not isinstance(value, dict)}
    own: dict[str, Any] = section.get(dataset, {})
    return common | own


@dataclass(frozen=True)
class TrialRow:
    """A line of ``search.jsonl``."""

    task: TaskKind
    dataset: str
    method: str
    trial: int
    values: dict[str, Any]
    validation: float | None
    splits: dict[str, float]
    seconds: float
    revision: int
    training: dict[str, Any]
    error: str | None = None
    plan: str = "rivals"  # the only one there was at first
    fixed: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def search(self) -> tuple[TaskKind, str, str]:
        """Which search it belongs to."""
        return self.task, self.dataset, self.method


def searches(
    tasks: Iterable[str] | None = None,
    datasets: Iterable[str] | None = None,
    methods: Iterable[str] | None = None,
    data_root: Path | None = None,
    plan: str | None = None,
) -> list[Search]:
    """Return the searches asked for, leader by leader.

    Args:
        tasks: Of these; all where nothing is said, as below.
        datasets: On these leaders.
        methods: Of these methods.
        data_root: Where raw files are.
        plan: Of this declared search.

    Raises:
        ConfigError: If there is none.
    """
    wanted = [None if names is None else set(names) for names in (tasks, datasets, methods)]
    plans = [declared for name, declared in PLANS.items() if plan in (None, name)]
    found = [
        Search(method, benchmark, data_root)
        for declared in plans
        for benchmark in declared.groups
        for method in declared.methods
        if all(
            names is None or name in names
            for names, name in zip(wanted, (*benchmark, method), strict=True)
        )
    ]
    if not found:
        known = [method for declared in plans for method in declared.methods]
        leaders = dict.fromkeys(dataset for declared in plans for _, dataset in declared.groups)
        raise ConfigError(
            f"Expected '--methods' of {', '.join(known)} and '--datasets' that lead a group: "
            f"{', '.join(leaders)} (got none of both)."
        )
    return found


def is_complete(search: Search, rows: Iterable[TrialRow]) -> bool:
    """Return whether all trials of a search are recorded."""
    own = (*search.benchmark, search.method)
    return sum(row.search == own for row in rows) >= search.plan.trials


def read_trials(file: Path) -> list[TrialRow]:
    """Return recorded trials."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [TrialRow(**json.loads(line)) for line in lines]


def record_trials(file: Path, rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Put trials into the file in place of what it has of their searches; return all."""
    renewed = {row.search for row in rows}
    kept = [row for row in read_trials(file) if row.search not in renewed]
    order = [(*search.benchmark, search.method) for search in searches()]
    both = sorted([*kept, *rows], key=lambda row: (order.index(row.search), row.trial))
    text = "".join(json.dumps(asdict(row), sort_keys=True) + "\n" for row in both)
    write_atomically(file, text.encode())
    return both


def best_trials(rows: Sequence[TrialRow]) -> Iterator[tuple[TrialRow, int]]:
    """Yield the best trial of each search that has all its trials, and how many there were.

    The highest mean wins, of equals the first.
    """
    for search in dict.fromkeys(row.search for row in rows):
        own = [row for row in rows if row.search == search]
        complete = [row for row in own if row.validation is not None]
        if len(own) >= PLANS[own[0].plan].trials and complete:
            yield max(complete, key=lambda row: (row.validation or 0.0, -row.trial)), len(own)


def changes(best: TrialRow, rows: Iterable[TrialRow]) -> dict[str, Any]:
    """Return the values of a search's best trial that its first, the preset, does not have."""
    first = next(row for row in rows if row.search == best.search and row.trial == 0)
    return {key: value for key, value in best.values.items() if first.values[key] != value}


def markdown(rows: Sequence[TrialRow]) -> str:
    """Return a table of what was found, a line per search."""
    lines = [
        "| task | leader | method | began with | best of the trials | values that changed |",
        "|---|---|---|---:|---:|---|",
    ]
    for best, count in best_trials(rows):
        first = next(row for row in rows if row.search == best.search and row.trial == 0)
        changed = ", ".join(
            f"`{key}` {json.dumps(first.values[key])} → {json.dumps(value)}"
            for key, value in changes(best, rows).items()
        )
        began = "failed" if first.validation is None else f"{first.validation:.2f}"
        lines.append(
            f"| {best.task} | {best.dataset} | {best.method} | {began} | {best.validation:.2f} "
            f"(trial {best.trial} of {count}) | {changed or 'none'} |"
        )
    return "\n".join(lines) + "\n"


# Into the presets --------------------------------------------------------------------------------


def write_presets(rows: Sequence[TrialRow]) -> list[Path]:
    """Put what each complete search found into the presets of its group; return the files."""
    written: dict[Path, None] = {}
    for best, count in best_trials(rows):
        plan = PLANS[best.plan]
        found = changes(best, rows) if plan.only_changes else best.values
        if not found:
            continue  # the preset is the best, for those that follow as well
        presets = get_method(best.method).presets
        if presets is None:
            raise ConfigError(f"Expected '{best.method}' to have presets (got none).")
        file = presets / plan.preset(best.method, best.task) / f"{best.task}.yaml"
        text = file.read_text()
        for dataset in (best.dataset, *plan.groups[best.task, best.dataset]):
            text = with_found(text, dataset, best, count, found)
        write_atomically(file, text.encode())
        written[file] = None
        if best.method == "geof":  # whose recipe and size the controls have
            group = (best.dataset, *plan.groups[best.task, best.dataset])
            written |= dict.fromkeys(write_matched([(best.task, dataset) for dataset in group]))
    return list(written)


def with_found(
    text: str, dataset: str, best: TrialRow, count: int, values: Mapping[str, Any]
) -> str:
    """Return a preset's text with values of the best trial in a dataset's section.

    What was not searched stays there with its reason, but for the budget: validation ends a run.
    Where only changes are taken over, a budget that ends by patience stays as well.
    """
    before, old, after = sections(text, dataset)
    reason = f"search on {best.dataset}: best of {count}, validation {best.validation:.2f}"
    kept = {name: (value, why) for name, value, why in values_of(old)}
    found = {key: (as_yaml(value), reason) for key, value in values.items()}
    for section, options in best.fixed.items():
        found |= {f"{section}.{key}": (as_yaml(v), "of all trials") for key, v in options.items()}
    plan = PLANS[best.plan]
    if not (plan.only_changes and _ends_by_patience(text, dataset)):
        epochs, patience = plan.budget((best.task, dataset))
        why = "as every method here: validation ends a run"
        if best.values.get("schedule") == "cosine":
            epochs = min(epochs, round(4 / 3 * best.training["epochs"]))
            why = "of the schedule, which ends where it is told to; a third more than a trial's"
        found |= {"epochs": (str(epochs), why), "patience": (str(patience), "likewise")}
    return before + f"{dataset}:\n" + lines_of(kept | found) + after


def _ends_by_patience(text: str, dataset: str) -> bool:
    own: dict[str, str] = {}
    for name in ("all", dataset):
        own |= {key: value for key, value, _ in values_of(sections(text, name)[1])}
    return own.get("patience", "null") != "null"
