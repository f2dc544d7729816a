"""From two CSV files to predictions in a third, in Python: read, train, predict, write.

    python examples/own_tables.py FOLDER

writes tables of people and who knows whom into the folder, then everything that comes of them.
"""

from __future__ import annotations

import csv
import random
import sys
from pathlib import Path

from geof.data.tables import read_node_table
from geof.training import CsvLog, RunConfig, Trainer, adapted, build_task
from geof.training.predict import Run

TOWNS = ("Ulm", "Bern", "Oslo")


def write_tables(folder: Path, people: int = 200) -> None:
    """Write people with an age, a town and a club; who is in one club, knows each other more."""
    draw = random.Random(0)
    clubs = [draw.randrange(3) for _ in range(people)]
    rows = [
        [f"p{i}", round(draw.gauss(30 + 6 * club, 8)), draw.choice(TOWNS), f"club {club}"]
        for i, club in enumerate(clubs)
    ]
    for row in rows[-20:]:
        row[-1] = ""  # whose club is not known
    pairs = set()
    while len(pairs) < 4 * people:
        a, b = sorted(draw.sample(range(people), 2))
        if clubs[a] == clubs[b] or draw.random() < 0.15:
            pairs.add((f"p{a}", f"p{b}"))
    for name, heading, lines in (
        ("nodes.csv", ["id", "age", "town", "club"], rows),
        ("edges.csv", ["source", "target"], sorted(pairs)),
    ):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([heading, *lines])


def main(folder: Path, epochs: int = 60) -> float:
    """Return the test accuracy; predictions, log and run are in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tables(folder)
    data, schema = read_node_table(folder / "nodes.csv", folder / "edges.csv", label="club")
    print(*data.notes, sep="\n")

    config = adapted(RunConfig.parse({"preset": "auto", "epochs": epochs}), data)
    task = build_task(config, data)
    log = CsvLog(folder / "log.csv")
    trainer = Trainer(config, task, out=folder / "run", schema=schema, callbacks=[log])
    result = trainer.fit()  # the same call goes on after an interruption
    print(f"test {result.metric} {result.test:.1f} %, epoch {result.best_epoch} of {result.epochs}")

    run = Run.open(folder / "run")  # as another process would
    found = run.predict_nodes(data)
    with (folder / "predictions.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "club", "probability"])
        for (name,), label, chances in zip(
            found.ids, found.labels(), found.probability.tolist(), strict=True
        ):
            writer.writerow([name, label, f"{max(chances):.3f}"])
    return result.test


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "people"))
