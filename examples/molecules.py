"""Numbers of molecules from their SMILES: a table, a scaffold split, predictions for new ones.

python examples/molecules.py        # needs pip install 'geof[molecules]'
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

from geof.data.molecules import read_molecules
from geof.training import RunConfig, Trainer, adapted, build_task
from geof.training.predict import Run

CHAINS = ("C", "CC", "CCC", "CCCC", "CC(C)C", "CCCCC", "CC(C)CC")
ENDS = ("O", "N", "Cl", "C(=O)O", "c1ccccc1", "C1CCCCC1", "C#N", "OC")
NEW = ("CCCCCCO", "CCc1ccc(C)cc1", "NCCN")


def write_table(path: Path) -> None:
    """Write a molecule per line and its number of carbon atoms, which a network has to count."""
    made = [a + b for a, b in itertools.product(CHAINS, ENDS)]
    made += [e + a + b for a, b, e in itertools.product(CHAINS, ENDS, ("O", "N"))]
    rows = [f"{smiles},{smiles.upper().count('C') - smiles.count('Cl')}" for smiles in made]
    path.write_text("\n".join(["smiles,carbons", *rows]) + "\n")


def main(epochs: int = 60) -> float:
    """Return the root mean squared error on molecules whose scaffolds were not trained on."""
    with tempfile.TemporaryDirectory() as folder:
        table, new = Path(folder, "molecules.csv"), Path(folder, "new.csv")
        write_table(table)
        new.write_text("\n".join(["smiles", *NEW]) + "\n")
        data = read_molecules(table, label="carbons", target_kind="regression", aside=["smiles"])
        given = {"preset": "auto", "task": "graph", "split": "scaffold", "epochs": epochs}
        config = adapted(RunConfig.parse(given), data)
        trainer = Trainer(config, build_task(config, data))
        result = trainer.fit()
        print(f"test {result.metric} {result.test:.2f} carbon atoms")
        found = Run.of(trainer).predict_graphs(read_molecules(new))
    for smiles, number in zip(NEW, found.probability[:, 0].tolist(), strict=True):
        print(f"{smiles}: {number:.1f}")
    return float(result.test)


if __name__ == "__main__":
    main()
