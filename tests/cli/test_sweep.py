"""``geof sweep`` as a user meets it: refused, interrupted, killed, gone on with."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("optuna", reason="the extra geof[sweep] is not installed")

from geof import processes
from geof.cli import main
from geof.methods.registry import unregister
from geof.training import Trainer, trials
from geof.training.sweep import Study
from tests.cli.conftest import write_molecules
from tests.processes import marked, wait_for

QUICK = ["--method", "gcn", "options.hidden_channels=8", "options.num_layers=1"]
GRID = "learning_rate: [0.1, 0.01]\noptions: {dropout: [0.0, 0.5]}\n"
SPACE = "learning_rate: {low: 1e-3, high: 1e-1, log: true}\noptions.dropout: [0.0, 0.5]\n"


@pytest.fixture(scope="module", autouse=True)
def unsynchronised_databases():
    """Nothing here survives the machine, and waiting for the disk would be most of the time."""
    sqlalchemy = pytest.importorskip("sqlalchemy")

    def relax(connection, record):
        connection.execute("PRAGMA synchronous=OFF")

    sqlalchemy.event.listen(sqlalchemy.engine.Engine, "connect", relax)
    yield
    sqlalchemy.event.remove(sqlalchemy.engine.Engine, "connect", relax)


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A graph and a folder to be in; the studies are named relative to it."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 5)).astype("float32")
    edges = generator.integers(0, 40, (2, 90))
    np.savez(tmp_path / "g.npz", x=x, edge_index=edges, y=(x[:, 0] > 0).astype("int64"))
    (tmp_path / "grid.yaml").write_text(GRID)
    (tmp_path / "space.yaml").write_text(SPACE)
    monkeypatch.chdir(tmp_path)
    return ["--npz", "g.npz"]


MARK = "GEOF_TEST_STUDY"
"""In the environment of a sweep's process and its workers."""


def living() -> list[int]:
    """Return the processes of sweeps started in this folder."""
    return marked(f"{MARK}={Path.cwd()}")


def rows(folder) -> list[dict[str, str]]:
    with (Path(folder) / "summary.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def states(folder) -> list[str]:
    """What the database says, in the order of the trials."""
    import optuna

    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{folder}/study.db")
    return [trial.state.name for trial in study.get_trials(deepcopy=False)]


def outcomes(folder) -> list[dict[str, str]]:
    kept = ("state", "validation", "folder", "learning_rate", "options.dropout")
    return [{key: row[key] for key in kept} for row in rows(folder)]


@contextmanager
def started(*words: str):
    """Run the command in a process of its own, ended whatever happens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "geof.cli", "sweep", *words],
        env={**os.environ, MARK: str(Path.cwd())},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def wait_for_epochs(folder, least: int, runs: int, finished: int = 0) -> None:
    """Wait until so many runs are in their midst and so many trials done."""

    def is_so() -> bool:
        going = [
            path
            for path in Path(folder).glob("trials/*/*/metrics.jsonl")
            if not (path.parent / "result.json").exists() and path.read_text().count("\n") >= least
        ]
        table = Path(folder) / "summary.csv"
        return len(going) >= runs and table.exists() and len(rows(folder)) >= finished

    wait_for(is_so, 120)


def test_a_grid_from_the_command_to_the_best_config(source, monkeypatch, capsys):
    read, built = [], []
    real, build = trials.read_data, trials.build_task
    monkeypatch.setattr(
        trials, "build_task", lambda config, data: built.append(config.split) or build(config, data)
    )
    monkeypatch.setattr(trials, "read_data", lambda *source: read.append(1) or real(*source))
    words = ["--out", "S", "--sampler", "grid", "--workers", "1", "epochs=3", *QUICK]
    assert main(["sweep", "grid.yaml", *source, *words]) == 0
    assert len(read) == 1
    assert built == ["0", "1"]
    text = capsys.readouterr().out
    found = rows("S")
    assert [(r["learning_rate"], r["options.dropout"]) for r in found] == [
        ("0.1", "0.0"),
        ("0.1", "0.5"),
        ("0.01", "0.0"),
        ("0.01", "0.5"),
    ]
    best = max(found, key=lambda row: float(row["validation"]))
    assert f"trial 4 of 4: validation {float(found[3]['validation']):.2f} % (best " in text
    assert f"Best: validation accuracy {float(best['validation']):.2f} % on splits 0, 1" in text

    # The config trains, on every split, to what the search saw.
    config = Path("S/best.yaml").read_text()
    assert "preset: plain" in config
    assert "num_layers: 1" in config
    for split in ("0", "1"):
        run = ["train", "--config", "S/best.yaml", "--split", split, "--out", f"R{split}"]
        assert main([*run, "--quiet"]) == 0
        result = json.loads(Path(f"R{split}/result.json").read_text())
        assert result["validation"] == float(best[f"validation_split_{split}"])
        assert result["test"] is not None
        trial = Path("S/trials") / best["folder"] / f"split-{split}"
        assert json.loads((trial / "result.json").read_text())["test"] is None
        assert (trial / "metrics.jsonl").read_text() == Path(f"R{split}/metrics.jsonl").read_text()

    # Finished, it says the same again; the same command and --resume are one.
    before = Path("S/summary.csv").read_bytes()
    capsys.readouterr()
    assert main(["sweep", "--resume", "S", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["best"]["validation"] == float(best["validation"])
    assert (said["trials"], said["failed"], said["metric"]) == (4, 0, "accuracy")
    assert main(["sweep", "grid.yaml", *source, *words, "--quiet"]) == 0
    assert "trial 4" not in capsys.readouterr().out
    assert Path("S/summary.csv").read_bytes() == before


def test_a_study_may_grow(source):
    words = ["--out", "S", "--trials", "1", "--splits", "2", "--workers", "1", "epochs=1", *QUICK]
    assert main(["sweep", "space.yaml", *source, *words]) == 0
    assert main(["sweep", "--resume", "S", "--trials", "2"]) == 0
    assert len(rows("S")) == 2
    assert "validation_split_2" in rows("S")[0]
    assert {path.name for path in Path("S").glob("trials/*/split-*")} == {"split-2"}


def test_a_searched_seed_is_in_the_best_config(source):
    Path("seeds.yaml").write_text("seed: [5]\n")
    words = ["--out", "S", "--sampler", "grid", "--workers", "1", "epochs=1", *QUICK]
    assert main(["sweep", "seeds.yaml", *source, *words]) == 0
    assert "\nseed: 5\n" in Path("S/best.yaml").read_text()


def test_failed_trials_are_told_and_all_failed_is_a_failure(source, capsys):
    Path("bad.yaml").write_text("learning_rate: [1e30, 0.01]\n")
    words = ["--sampler", "grid", "--splits", "0", "--workers", "1", "epochs=4", *QUICK]
    assert main(["sweep", "bad.yaml", *source, "--out", "S", *words]) == 0
    assert "trial 1 of 2: failed with learning_rate=1e+30: Epoch" in capsys.readouterr().out
    assert "finite" in rows("S")[0]["error"]
    assert main(["sweep", "bad.yaml", *source, "--out", "T", "--trials", "1", *words]) == 1
    said = capsys.readouterr().err
    assert "all 1 failed" in said
    assert "finite" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "'SPACE.yaml', the options to search"),
        (["space.yaml", "learning_rat=3"], "Did you mean 'learning_rate'"),
        (["wrong.yaml"], "Did you mean 'learning_rate'"),
        (["space.yaml", "learning_rate=3"], "in the space or as learning_rate=3 (got both)"),
        (["space.yaml", "--sampler", "grid"], "a range for 'learning_rate'"),
        (["space.yaml", "--splits", "0,0"], "different 'splits'"),
        (["space.yaml", "--splits", "0,x"], "a number from 0, 'scaffold'"),
        (["space.yaml", "--splits", "0", "--split", "1"], "(got both)"),
        (["space.yaml", "--splits", "0", "split=1"], "(got both)"),
        (["space.yaml", "model.dropout=0.1"], "in the space or as model.dropout=0.1 (got both)"),
        (["nowhere.yaml"], "file at 'nowhere.yaml'"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(words, message, source, capsys):
    Path("wrong.yaml").write_text("learning_rat: [1]\n")
    assert main(["sweep", *words, *source, "--out", "S"]) == 1
    assert message in capsys.readouterr().err
    assert not Path("S").exists()


def test_folders_that_do_not_fit_are_refused(source, capsys):
    words = ["--workers", "1", "--trials", "1", "--splits", "0", "epochs=1", *QUICK]
    assert main(["sweep", "space.yaml", *source, *words]) == 1
    assert "'--out STUDY'" in capsys.readouterr().err
    assert main(["sweep", "space.yaml", *source, *words, "--out", "."]) == 1
    assert "new or empty folder" in capsys.readouterr().err
    assert main(["sweep", "--resume", "nowhere"]) == 1
    assert "Expected a study of 'geof sweep'" in capsys.readouterr().err
    assert not Path("nowhere").exists()
    assert main(["sweep", "space.yaml", *source, *words, "--out", "S"]) == 0
    assert main(["sweep", "grid.yaml", *source, *words, "--seed", "1", "--out", "S"]) == 1
    assert "was begun with (other: space.yaml, seed)" in capsys.readouterr().err
    assert main(["sweep", "space.yaml", *source, *words, "clip=1", "--out", "S"]) == 1
    assert "was begun with (other: config.yaml)" in capsys.readouterr().err
    assert main(["sweep", "--resume", "S", "--seed", "0"]) == 1
    assert "no 'seed' beside '--resume STUDY'" in capsys.readouterr().err
    with Study.read(Path("S")).held():
        assert main(["sweep", "--resume", "S"]) == 1
    assert "another sweep does" in capsys.readouterr().err
    assert main(["sweep", "--resume", "S", "--npz", "g.npz"]) == 1
    assert "no 'npz' beside '--resume STUDY'" in capsys.readouterr().err
    np.savez("g.npz", x=np.eye(4), edge_index=np.array([[0, 1], [1, 2]]), y=np.array([0, 1, 0, 1]))
    assert main(["sweep", "--resume", "S", "--trials", "2"]) == 1
    assert "'g' has changed" in capsys.readouterr().err
    order = json.loads(Path("S/sweep.json").read_text())
    del order["data_hash"]
    for damaged in ('{"trials": "many"}', json.dumps(order), json.dumps({**order, "more": 1})):
        Path("S/sweep.json").write_text(damaged)
        assert main(["sweep", "--resume", "S"]) == 1
        assert "'S/sweep.json' to be what 'geof sweep' wrote" in capsys.readouterr().err


def test_without_optuna_it_says_how_to_install_it(source, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["sweep", "space.yaml", *source, "--out", "S"]) == 1
    assert "pip install 'geof[sweep]'" in capsys.readouterr().err
    assert not Path("S").exists()


def test_help_imports_neither_torch_nor_optuna():
    code = (
        "import sys, geof.cli; geof.cli.build_parser().format_help();"
        "print([m for m in ('torch', 'optuna') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_one_interruption_stops_after_the_epoch(source, monkeypatch, capsys):
    real, calls = Trainer.fit, []

    def interrupted(self):
        calls.append(self.out)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return real(self)

    monkeypatch.setattr(Trainer, "fit", interrupted)
    words = ["--splits", "0", "--trials", "3", "--workers", "1", "--out", "S", "epochs=3", *QUICK]
    assert main(["sweep", "space.yaml", *source, *words]) == 130
    assert "Go on with: geof sweep --resume S" in capsys.readouterr().err
    assert len(rows("S")) == 1
    (going,) = [p for p in Path("S").glob("trials/*/split-*") if not (p / "result.json").exists()]
    assert len((going / "metrics.jsonl").read_text().splitlines()) == 1
    assert main(["sweep", "--resume", "S"]) == 0
    assert len(rows("S")) == 3
    assert calls.count(going.absolute()) + calls.count(going) == 2


def test_a_killed_sweep_goes_on_as_if_nothing_had_happened(source, geof):
    words = ["space.yaml", *source, "--splits", "0", "--trials", "3", "--workers", "1"]
    words += ["epochs=100", *QUICK, "--quiet"]
    command = geof.start("sweep", *words, "--out", "S", folder=Path.cwd())
    wait_for_epochs("S", least=5, runs=1, finished=1)
    command.signal(signal.SIGKILL)
    assert command.wait().code == -signal.SIGKILL
    assert states("S")[-1] == "RUNNING"
    done = {p: p.stat().st_mtime_ns for p in Path("S").glob("trials/*/*/result.json")}
    assert 1 <= len(done) <= 2
    assert main(["sweep", "--resume", "S", "--quiet"]) == 0
    assert sorted(states("S")) == ["COMPLETE"] * 3 + ["FAIL"]
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert main(["sweep", *words, "--out", "T"]) == 0
    assert outcomes("S") == outcomes("T")
    assert len({row["folder"] for row in rows("S")}) == 3


@pytest.mark.slow
def test_two_workers_share_a_study(source, capfd):
    words = ["--sampler", "grid", "--splits", "0", "--workers", "2", "--out", "S", "epochs=2"]
    assert main(["sweep", "grid.yaml", *source, *words, *QUICK]) == 0
    assert states("S") == ["COMPLETE"] * 4
    assert len({row["folder"] for row in rows("S")}) == 4
    text = capfd.readouterr()
    assert "trial 4 of 4: validation" in text.out
    assert not text.err  # nothing of Optuna's
    logs = list(Path("S/workers").iterdir())
    assert {path.name for path in logs} <= {"0.log", "1.log"}
    assert [path.read_text() for path in logs] == [""] * len(logs)
    # One process alone comes to the same.
    words = ["--sampler", "grid", "--splits", "0", "--workers", "1", "--out", "T", "epochs=2"]
    assert main(["sweep", "grid.yaml", *source, *words, *QUICK]) == 0
    assert outcomes("S") == outcomes("T")


def test_workers_that_do_not_start_are_told_of(source, monkeypatch, capsys):
    monkeypatch.setattr(processes, "serve", os._exit)  # ends with exit code 1
    words = ["--trials", "2", "--splits", "0", "--workers", "2", "--out", "S", "epochs=1"]
    assert main(["sweep", "space.yaml", *source, *words, *QUICK]) == 1
    said = capsys.readouterr().err
    assert "a worker process to start, but it ended with exit code 1" in said
    assert "Go on with: geof sweep --resume S" in said


@pytest.mark.slow
def test_a_killed_worker_costs_nothing(source):
    words = ["grid.yaml", *source, "--splits", "0", "--workers", "2", "--sampler", "grid"]
    words += ["epochs=600", "patience=null", *QUICK, "--quiet"]
    with started(*words, "--out", "S") as process:
        wait_for_epochs("S", least=5, runs=2)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        workers = [n for n in children if b"spawn_main" in Path(f"/proc/{n}/cmdline").read_bytes()]
        assert len(workers) == 2
        os.kill(int(workers[0]), signal.SIGKILL)
        assert process.wait(timeout=300) == 0
    assert states("S") == ["COMPLETE"] * 4
    assert main(["sweep", *words, "--workers", "1", "--out", "T"]) == 0
    assert outcomes("S") == outcomes("T")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_reaches_every_worker(number, source, capfd):
    words = ["grid.yaml", *source, "--splits", "0,1", "--workers", "2", "--sampler", "grid"]
    with started(*words, "--out", "S", "epochs=300", "patience=null", *QUICK) as process:
        wait_for_epochs("S", least=5, runs=2)
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Go on with: geof sweep --resume S" in said
    assert living() == []
    # Both were in a trial's midst; one may have come to its end before the signal arrived.
    interrupted = states("S").count("RUNNING")
    assert interrupted in (1, 2)
    going = [p for p in Path("S").glob("trials/*/split-*") if not (p / "result.json").exists()]
    assert all(list(path.glob("training_state*")) for path in going)
    for path in Path("S/workers").glob("*.log"):
        assert "Traceback" not in path.read_text()
    assert main(["sweep", "--resume", "S", "--workers", "1"]) == 0
    assert sorted(states("S")) == ["COMPLETE"] * 4 + ["FAIL"] * interrupted
    assert len(rows("S")) == 4


@pytest.mark.slow
def test_workers_outlive_a_killed_parent_by_an_epoch(source, capfd):
    words = ["grid.yaml", *source, "--splits", "0", "--workers", "2", "--sampler", "grid"]
    with started(*words, "--out", "S", "epochs=1500", "patience=null", *QUICK) as process:
        wait_for_epochs("S", least=5, runs=2)
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_for(lambda: not living(), 5)
    left = states("S").count("RUNNING")
    assert left in (1, 2)  # a quick worker may have finished its trial just before
    going = [p for p in Path("S").glob("trials/*/split-*") if not (p / "result.json").exists()]
    before = {path: len((path / "metrics.jsonl").read_text().splitlines()) for path in going}
    # Whoever goes on takes back what they left, from where they saved it.
    assert main(["sweep", "--resume", "S", "--trials", "2", "--workers", "1"]) == 0
    found = rows("S")
    assert [row["state"] for row in found] == ["complete"] * 2
    assert states("S").count("FAIL") == left
    assert states("S").count("RUNNING") == 0
    assert all(count > 5 for count in before.values())
    # No point of the grid is lost or doubled.
    assert len([state for state in states("S") if state != "FAIL"]) == 4


def test_a_study_of_an_earlier_version_goes_on(source, capsys):
    Path("old.yaml").write_text("model.dropout: [0.0, 0.5]\n")
    words = ["--sampler", "grid", "--splits", "0", "--workers", "1", "epochs=1", *QUICK]
    assert main(["sweep", "old.yaml", *source, *words, "--trials", "1", "--out", "S"]) == 0
    # As it was written then: other names, and no seed unless it was given.
    text = Path("S/config.yaml").read_text()
    text = text.replace("method: gcn", "encoder: gcn").replace("options:", "model:")
    Path("S/settings.yaml").write_text(text.replace("seed: null\n", ""))
    Path("S/config.yaml").unlink()
    before = rows("S")[0]
    assert main(["sweep", "--resume", "S", "--trials", "2"]) == 0
    assert rows("S")[0] == before
    assert [row["model.dropout"] for row in rows("S")] == ["0.0", "0.5"]
    assert main(["train", "--config", "S/best.yaml", "--out", "R", "--quiet"]) == 0
    # The same command is the same study.
    capsys.readouterr()
    assert main(["sweep", "old.yaml", *source, *words, "--out", "S"]) == 0
    assert "2 finished before" in capsys.readouterr().out


PLUGIN = """
from geof.methods.registry import Method, get_method, register

class Mine(get_method("gcn").build):
    pass

register(Method("mine", Mine, revision=1))
"""


@pytest.mark.slow
def test_workers_know_a_method_of_your_own(source, capsys):
    Path("mine.py").write_text(PLUGIN)
    words = ["--method", "mine", "--plugin", "mine.py", "--preset", "none", "epochs=1"]
    words += ["--sampler", "grid", "--splits", "0", "--workers", "2", "--out", "S"]
    try:
        assert main(["sweep", "grid.yaml", *source, *words]) == 0
    finally:
        unregister("mine")
    assert [row["state"] for row in rows("S")] == ["complete"] * 4


@pytest.mark.slow
def test_whether_bonds_are_used_can_be_searched(tmp_path, monkeypatch, capsys):
    words = write_molecules(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("space.yaml").write_text("data.edge_columns: [ignore, use]\n")
    options = ["options.hidden_channels=8", "options.blocks=2", "options.controller_channels=4"]
    order = ["--sampler", "grid", "--out", "s", "epochs=1", "--preset", "none", "--quiet"]
    assert main(["sweep", "space.yaml", *words, "--label", "active", *order, *options]) == 0
    assert [row["data.edge_columns"] for row in rows("s")] == ["ignore", "use"]
    assert len({row["folder"] for row in rows("s")}) == 2
    kept = [json.loads(file.read_text()) for file in Path("s").rglob("config.json")]
    read = [about["run"]["data"]["edge_columns"] for about in kept]
    assert sorted(read) == ["ignore", "ignore", "use", "use"]
