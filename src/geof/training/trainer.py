"""The trainer: fit on the training part, choose the epoch on validation, test once.

A run that is killed at any moment and started again ends with the bits of one that was not: the
state is saved between epochs, and between the steps of a long one; an epoch depends on the state
and its own number alone, and the sums inside it run in a fixed order.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from geof.data.columns import Schema
from geof.devices import resolve_device
from geof.errors import ConfigError, DataError, GeometryError, NonFiniteError, StoppedError
from geof.geometry import BlockCounts, counting_blocks
from geof.io import write_atomically, write_json, writing
from geof.machine import note_machine, peak_resident_bytes
from geof.methods.interface import GraphInputs, HasEpochEnd, HasPretext
from geof.training.callbacks import Callback, Callbacks
from geof.training.checkpoint import (
    Best,
    EpochReport,
    Partial,
    Progress,
    discard_states,
    load_checkpoint,
    load_state,
    newest_state,
    save_state,
    write_tensors,
)
from geof.training.config import RunConfig
from geof.training.metrics import metric_named
from geof.training.network import Network, bad_gradient, diagnose
from geof.training.ranks import ALONE, Ranks
from geof.training.run_folder import (
    CHECKPOINT,
    describe,
    disagreement,
    locked,
    read_result,
    settle_config,
)
from geof.training.tasks import Part, Scores, Task

LONG_EPOCH = 2.0
"""Seconds from which an epoch is stopped between its steps instead of at its end."""

FUSED = ("cpu", "cuda", "mps", "xpu")
"""Devices for which torch has an optimiser step in one piece."""

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Result:
    """What ``result.json`` holds. ``metrics`` are all test metrics.

    Metrics are percentages, but for those of numbers (RMSE, MAE, R2), which are in their own unit.

    ``test`` is ``None`` and ``metrics`` empty when the run was not to read the test part.
    """

    dataset: str
    task: str
    method: str
    preset: str
    metric: str
    test: float | None
    validation: float
    metrics: dict[str, float]
    best_epoch: int
    epochs: int
    seconds_per_epoch: float
    peak_rss_bytes: int
    parameters: int
    split: str
    split_hash: str
    seed: int
    selection: str


@dataclass(frozen=True)
class Watch:
    """How the world follows a run and stops it.

    Attributes:
        on_note: Told what a user should know, such as that the run goes on from epoch 12.
        on_epoch: Told about every epoch of this process.
        on_step: Told the number of an epoch and of an optimiser step in it, both from 1.
        should_stop: Asked after every epoch.
        save_seconds: Time from one saved state to the next; 0 saves after every epoch.
        step_seconds: Time after which a state is saved within an epoch, between its steps.
    """

    on_note: Callable[[str], None] = lambda note: None
    on_epoch: Callable[[EpochReport], None] = lambda report: None
    on_step: Callable[[int, int], None] = lambda epoch, step: None
    should_stop: Callable[[], bool] = lambda: False
    save_seconds: float = 10.0
    step_seconds: float = 30.0


class Trainer:
    """Trains one run.

    Args:
        config: What to train and how.
        task: Data, split and protocol.
        out: Run folder to write, or ``None``. A run begun there before is gone on with.
        watch: How to follow the run and stop it.
        callbacks: Told what happens: logs of your own, see :mod:`geof.training.callbacks`.
        allow_changes: Go on even if training options differ from those the run began with.
        schema: What a table of nodes went through, so that the checkpoint can read another one.
        device: Where to compute, such as ``"cuda:1"`` (default: the config's). The task's data are
            moved there; parameters are drawn on the CPU, so all devices start alike.
        ranks: The processes that train it together, see :func:`geof.training.distributed.join`.

    Attributes:
        network: With parameters drawn from the seed; after :meth:`fit` those of the chosen epoch.
        device: Where it is.

    Raises:
        ConfigError: For an option the method refuses, or a stage it does not have.
        DeviceError: If the device is not there.

    >>> from geof.data import NodeGraph, digits_graph, random_node_split
    >>> from geof.training import NodeTask, RunConfig, Trainer, TrainingConfig
    >>> digits = NodeGraph("digits", digits_graph(), tuple("0123456789"))
    >>> task = NodeTask(digits, random_node_split(1797, 0))
    >>> config = RunConfig(method="gcn", training=TrainingConfig(epochs=2))
    >>> Trainer(config, task).fit().epochs
    2
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        *,
        out: Path | str | None = None,
        watch: Watch | None = None,
        callbacks: Sequence[Callback] = (),
        allow_changes: bool = False,
        schema: Schema | None = None,
        device: str | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        if task.kind != config.task:
            raise ConfigError(
                f"Expected the config's task, {config.task!r} (got a task for {task.kind!r})."
            )
        self.config, self.task, self.schema = config, task, schema
        self.ranks = ranks
        self.out = Path(out) if out is not None and ranks.writes else None
        self.metric = metric_named(task.metric)
        self.watch = watch or Watch()
        self.callbacks = Callbacks(callbacks if ranks.writes else ())
        self.allow_changes = allow_changes
        self.device = resolve_device(ranks.device(device or config.training.device))
        torch.manual_seed(config.seed)
        self.network = Network(config, task.shape).to(self.device)
        task.to(self.device)
        ranks.adopt(self)
        self._parameters = list(self.network.parameters())  # to walk all modules costs a step dear
        self._require_stages()
        self.average = self._averaged()
        self._optimiser: tuple[bool, torch.optim.Optimizer] | None = None
        self.progress = Progress()
        # In so few bits small gradients would be nothing: the loss is scaled up before.
        half = self.network.lowered == torch.float16
        self.scaler = torch.amp.GradScaler(self.device.type) if half else None
        self._saved_epoch, self._saved_at = 0, time.monotonic()
        self._kept_epoch = 0  # of the checkpoint on disk
        self._inputs: GraphInputs | None = None
        self._blocks = BlockCounts()
        self._require_folder: Callable[[], None] = lambda: None

    def fit(self) -> Result:
        """Train to the end, read the test part once at the epoch validation chose, and write both.

        Raises:
            ConfigError: If the folder's run began with other options.
            FolderLockedError: If another process works in the folder.
            DataError: If nothing in the folder is sound.
            NonFiniteError: If a loss or gradient stops being finite; says where, and keeps the best
                checkpoint so far.
            StoppedError: If ``watch.should_stop`` said so; the state is saved.
            RankError: If one of several processes fails or is lost.
        """
        fixed = sums_in_fixed_order(self.config.training.deterministic, self.device)
        with self.ranks.guarded(), fixed:
            self.ranks.agree(self._description, disagreement)
            result = self._fit()
            self.ranks.close()
        return result

    def _description(self) -> dict[str, Any]:
        """Return what the checkpoint's header says: the run, wherever its files are."""
        return describe(self.config.without_paths(), self.task, self.schema)

    def _fit(self) -> Result:
        if self.out is None:
            done = self.ranks.told(lambda: None)
            return self._train() if done is None else self._finished(done)
        with locked(self.out) as self._require_folder:
            about = describe(self.config, self.task, self.schema) | self.ranks.record()
            for note in settle_config(self.out, about, allow_changes=self.allow_changes):
                self._note(note)
            done = self.ranks.told(partial(read_result, self.out))
            if done is not None:
                self._note("The run is finished already; this is its result.")
                load_checkpoint(self.out / CHECKPOINT, self.network)
                discard_states(self.out)
                return self._finished(done)
            self.task.save_split(self.out / "split.npz")
            return self._train()

    def _note(self, note: str) -> None:
        self.watch.on_note(note)
        self.callbacks.on_note(self, note)

    def _finished(self, done: dict[str, Any]) -> Result:
        """Give every rank the weights of a finished run, and return its result."""
        self.ranks.copy_weights(self.network)
        return self._stored(done)

    def _stored(self, done: dict[str, Any]) -> Result:
        """Return what ``result.json`` held as a record."""
        try:
            return Result(**done)
        except TypeError as error:
            raise DataError(
                f"Expected '{self.out}' to hold the result of a run ({error}). Name another folder."
            ) from error

    def _require_stages(self) -> None:
        before, method = self.config.pretraining, self.config.method
        if before.epochs and not isinstance(self.network.encoder, HasPretext):
            raise ConfigError(
                f"Expected 'pretraining.epochs' to be 0 for '{method}', which has no pretext task "
                f"(got {before.epochs})."
            )
        frozen = before.epochs > 0 and before.freeze
        if frozen and not any(True for _ in self.network.readout.parameters()):
            raise ConfigError(
                f"Expected 'pretraining.freeze' to be False for '{method}' and task "
                f"'{self.task.kind}': its readout has no parameters, so nothing would be left to "
                "train."
            )

    def _averaged(self) -> AveragedModel | None:
        """Return a copy of the network that will hold the average of its weights, if wanted."""
        share = self.config.training.weight_averaging
        if share is None:
            return None
        if isinstance(self.network.encoder, HasEpochEnd):
            raise ConfigError(
                f"Expected no 'weight_averaging' for '{self.config.method}', which changes between "
                f"epochs what an average would blur (got {share})."
            )
        # Buffers too: running statistics belong to the weights they were taken with.
        rule = get_ema_multi_avg_fn(share)
        return AveragedModel(self.network, multi_avg_fn=rule, use_buffers=True)

    @property
    def judged(self) -> Network:
        """The network whose weights are scored and kept: the average, where one is taken."""
        if self.average is None:
            return self.network
        assert isinstance(self.average.module, Network)
        return self.average.module

    def _train(self) -> Result:
        self._resume()
        with ExitStack() as stack:
            stack.enter_context(_few_collections())
            self._blocks = stack.enter_context(counting_blocks())
            hook = self.network.encoder.register_forward_pre_hook(self._remember_inputs)
            stack.callback(hook.remove)
            metrics = stack.enter_context(self._metrics_file())
            self.callbacks.on_start(self)
            stack.push(self._end_unfinished)
            while not self._is_over():
                report = self._epoch(self.progress.epoch + 1)
                self._require_folder()
                metrics(report)
                self.watch.on_epoch(report)
                self.callbacks.on_epoch(self, report)
                if not self._is_over() and any(self.ranks.any(self.watch.should_stop())):
                    self._interrupt()
                self._save(force=False)
            self._note_blocks()
            result = self._result()
            self.callbacks.on_end(self, result)
        return result

    def _end_unfinished(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Tell callbacks that there is no result."""
        if error is not None:
            self.callbacks.on_end(self, None)

    def _note_blocks(self) -> None:
        """Say how many blocks the jitter schedule did not serve, if any."""
        reports = self.progress.reports
        rescued = sum(report.rescued_blocks for report in reports)
        kept = sum(report.kept_blocks for report in reports)
        if rescued or kept:
            epochs = sum(bool(report.rescued_blocks or report.kept_blocks) for report in reports)
            self._note(
                f"In {epochs} of {len(reports)} epochs blocks of the geometry stayed indefinite "
                f"through the jitter schedule: {rescued} needed a jitter relative to their own "
                f"size, {kept} kept their coordinates."
            )

    def _resume(self) -> None:
        if self.out is not None:
            self._load(self.out)
        self.ranks.copy_state(None if self.out is None else newest_state(self.out), self._load)
        if self.out is None:
            return
        self._saved_epoch = self.progress.epoch
        if self.progress.partial is not None:
            step = len(self.progress.partial.norms)
            self._note(f"Going on within epoch {self.progress.epoch + 1}, after step {step}.")
        elif self.progress.epoch:
            self._note(f"Going on after epoch {self.progress.epoch}.")
        (self.out / "failure.json").unlink(missing_ok=True)

    def _load(self, folder: Path) -> None:
        """Take over the state that a folder holds."""
        self.progress, notes = load_state(
            folder, self.network, self.optimiser_of, self.average, self.device, self.scaler
        )
        for note in notes:
            self._note(note)

    def is_pretext(self, epoch: int) -> bool:
        """Return whether an epoch belongs to the stage before the task's."""
        return epoch <= self.config.pretraining.epochs

    def optimiser_of(self, epoch: int) -> torch.optim.Optimizer:
        """Return the optimiser of an epoch's stage, fresh when a stage is entered."""
        pretext = self.is_pretext(epoch)
        if self._optimiser is None or self._optimiser[0] != pretext:
            self._optimiser = (pretext, self._enter(pretext))
        return self._optimiser[1]

    def _enter(self, pretext: bool) -> torch.optim.Optimizer:
        training, before, network = self.config.training, self.config.pretraining, self.network
        if pretext:
            return torch.optim.Adam(
                network.encoder.parameters(),
                lr=before.learning_rate,
                weight_decay=before.weight_decay,
                fused=self.device.type in FUSED,
            )
        if before.epochs and before.freeze:
            network.freeze_encoder()
        kind = torch.optim.AdamW if training.optimiser == "adamw" else torch.optim.Adam
        return kind(
            [parameter for parameter in network.parameters() if parameter.requires_grad],
            lr=training.learning_rate,
            weight_decay=training.weight_decay,
            fused=self.device.type in FUSED,
        )

    def _is_over(self) -> bool:
        training, progress = self.config.training, self.progress
        if progress.epoch >= self.config.pretraining.epochs + training.epochs:
            return True
        if training.patience is None or progress.best is None:
            return False
        return progress.epoch - progress.best.epoch >= training.patience

    def _epoch(self, epoch: int) -> EpochReport:
        started = time.perf_counter()
        training, network, task = self.config.training, self.network, self.task
        pretext, optimiser = self.is_pretext(epoch), self.optimiser_of(epoch)
        place = epoch - self.config.pretraining.epochs  # within the task's own stage
        rate = self.config.pretraining.learning_rate
        if not pretext:
            rate = training.learning_rate_at(place)
        for group in optimiser.param_groups:
            group["lr"] = rate
        network.train()
        begun = self.progress.partial or Partial()
        self.progress.partial = None
        losses, norms = begun.losses, begun.norms
        evaluating = False
        try:
            grade = task.pretext_losses if pretext else task.losses
            rest = grade(network, epoch, len(norms)) if norms else grade(network, epoch)
            for loss in rest:
                losses.append(self._value(loss))
                norms.append(self._step(loss, optimiser))
                self.watch.on_step(epoch, len(norms))
                self.callbacks.on_step(self, epoch, len(norms))
                if len(norms) < task.steps_per_epoch:
                    self._pause(begun, optimiser, time.perf_counter() - started)
            evaluating = True
            if not pretext and isinstance(network.encoder, HasEpochEnd):
                network.encoder.end_epoch(task.view(network, place))
            looks = not pretext and training.looks_at(place)
            scores = self._evaluate("validation", brief=True) if looks else None
            if scores is not None and not _finite(scores.loss):
                raise NonFiniteError(f"Expected a finite validation loss (got {scores.loss}).")
        except GeometryError as error:
            raise self._failure(error, epoch, len(norms) + (not evaluating)) from error
        blocks = self._blocks.take()
        rescued, kept = self.ranks.summed(blocks.rescued, blocks.kept)
        report = EpochReport(
            epoch=epoch,
            loss=sum(losses) / len(losses),
            validation=None if scores is None else scores.metrics[task.metric],
            validation_loss=None if scores is None else scores.loss,
            learning_rate=rate,
            gradient_norm=sum(norms) / len(norms),
            rescued_blocks=rescued + begun.rescued_blocks,
            kept_blocks=kept + begun.kept_blocks,
        )
        self._take(report)
        self.progress.seconds += time.perf_counter() - started + begun.seconds
        return report

    def _pause(self, begun: Partial, optimiser: torch.optim.Optimizer, seconds: float) -> None:
        """Between two steps of a long epoch: save if it is time, stop if that is wanted."""
        stop = seconds >= LONG_EPOCH and self.watch.should_stop()
        due = self.out is not None and time.monotonic() - self._saved_at >= self.watch.step_seconds
        stop, due = self.ranks.any(stop, due)
        if not (due or stop):
            return
        rescued, kept = self.ranks.summed(self._blocks.rescued, self._blocks.kept)
        if self.out is not None:
            self.progress.partial = Partial(
                begun.losses,
                begun.norms,
                begun.rescued_blocks + rescued,
                begun.kept_blocks + kept,
                begun.seconds + seconds,
            )
            self._write_state(optimiser)
            self._keep_checkpoint()
            self.progress.partial, self._saved_at = None, time.monotonic()
        if stop:
            raise StoppedError(
                f"Stopped within epoch {self.progress.epoch + 1}, after {len(begun.norms)} of "
                f"{self.task.steps_per_epoch} steps"
                + ("." if self.out is None else f"; the state is saved in '{self.out}'.")
            )

    def _value(self, loss: Tensor) -> float:
        """Return the loss of a step, of all ranks together."""
        value = self.ranks.total(loss)
        if not _finite(value):
            raise NonFiniteError(f"Expected a finite training loss (got {value}).")
        return value

    def _step(self, loss: Tensor, optimiser: torch.optim.Optimizer) -> float:
        """Take one optimiser step and return the gradient's norm before clipping.

        A step that scaled-up gradients overflow in is left out, with a norm of zero.
        """
        optimiser.zero_grad()
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        if self.scaler is not None:
            self.scaler.unscale_(optimiser)
        parameters = [p for p in self._parameters if p.grad is not None]
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
        finite = bool(norm.isfinite())
        if not finite and self.scaler is not None and self.scaler.get_scale() > 1:
            self.scaler.step(optimiser)  # which is not taken
            self.scaler.update()
            return 0.0
        if not finite:
            # The step is not taken: the parameters stay finite.
            raise NonFiniteError(
                f"Expected finite gradients (that of {bad_gradient(self.network)} is not)."
            )
        if self.config.training.clip is not None:
            clip_grads_with_norm_(parameters, self.config.training.clip, norm)
        if self.scaler is None:
            optimiser.step()
        else:
            self.scaler.step(optimiser)
            self.scaler.update()
        if self.average is not None:
            self.average.update_parameters(self.network)
        return float(norm)

    def _take(self, report: EpochReport) -> None:
        """Add a report and remember the weights if validation prefers them."""
        progress = self.progress
        progress.reports.append(report)
        if report.validation is None or report.validation_loss is None:
            return
        score = (self.metric.sign * report.validation, -report.validation_loss)
        if progress.best is None or score > progress.best.score:
            weights = {name: value.clone() for name, value in self.judged.state_dict().items()}
            progress.best = Best(score, report.epoch, weights)

    @torch.no_grad()
    def _evaluate(self, part: Part, *, brief: bool = False) -> Scores:
        self.judged.eval()
        return self.ranks.scores(
            self.task, partial(self.task.evaluate, self.judged, part, brief=brief)
        )

    def _remember_inputs(self, module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        self._inputs = arguments[0]

    def _failure(self, error: GeometryError, epoch: int, step: int) -> GeometryError:
        """Write what happened, keep the best weights, and return the error to raise."""
        found = diagnose(self.network, self._inputs, str(error))
        kept = "No checkpoint was written yet."
        self._keep_checkpoint()
        if self.out is not None and self.progress.best is not None:
            kept = f"The checkpoint of epoch {self.progress.best.epoch} is in '{self.out}'."
        message = (
            f"Epoch {epoch}, optimiser step {step}: {error} {found} {kept} Lower 'learning_rate', "
            "set 'clip', or narrow the admissible box (options.log_scale_bounds, "
            "options.offdiagonal_bound)."
        )
        if self.out is not None:
            write_json(
                self.out / "failure.json",
                {"epoch": epoch, "optimiser_step": step, "error": str(error), **asdict(found)},
            )
        return type(error)(message)

    def _save(self, *, force: bool) -> None:
        if self.out is None or self._saved_epoch == self.progress.epoch:
            return
        due = time.monotonic() - self._saved_at >= self.watch.save_seconds
        if not (due or force):
            return
        self._write_state(self.optimiser_of(self.progress.epoch))
        self._keep_checkpoint()
        self._saved_epoch, self._saved_at = self.progress.epoch, time.monotonic()

    def _write_state(self, optimiser: torch.optim.Optimizer) -> None:
        assert self.out is not None
        more = self.average, self.device, self.scaler
        save_state(self.out, self.progress, self.network, optimiser, *more)

    def _keep_checkpoint(self) -> None:
        """Write the weights validation prefers, described so that the file alone can be opened."""
        best = self.progress.best
        if self.out is None or best is None or best.epoch == self._kept_epoch:
            return
        about = self._description()
        about |= {"epoch": best.epoch, "validation": self.metric.sign * best.score[0]}
        write_tensors(self.out / CHECKPOINT, best.weights, about)
        self._kept_epoch = best.epoch

    def _interrupt(self) -> None:
        self._save(force=True)
        raise StoppedError(
            f"Stopped after epoch {self.progress.epoch}"
            + ("." if self.out is None else f"; the state is saved in '{self.out}'.")
        )

    @contextmanager
    def _metrics_file(self) -> Iterator[Callable[[EpochReport], None]]:
        """Yield what appends a line to ``metrics.jsonl``, begun anew from the state's reports."""
        if self.out is None:
            yield lambda report: None
            return
        path = self.out / "metrics.jsonl"
        write_atomically(path, "".join(r.line() for r in self.progress.reports).encode())
        with writing(path):
            file = path.open("a")
        try:

            def append(report: EpochReport) -> None:
                with writing(path):
                    file.write(report.line())
                    file.flush()

            yield append
            with writing(path):
                os.fsync(file.fileno())
        finally:
            with suppress(OSError):  # what could not be written has been told
                file.close()

    def _result(self) -> Result:
        config, task, progress, network = self.config, self.task, self.progress, self.network
        assert progress.best is not None  # the last epoch looks at validation
        network.load_state_dict(progress.best.weights)
        self.average = None  # from here on the network has the weights that were kept
        test = self._evaluate("test") if config.read_test else Scores({}, 0.0)
        result = Result(
            dataset=task.dataset,
            task=task.kind,
            method=config.method,
            preset=config.preset,
            metric=task.metric,
            test=test.metrics[task.metric] if config.read_test else None,
            validation=self.metric.sign * progress.best.score[0],
            metrics=test.metrics,
            best_epoch=progress.best.epoch,
            epochs=progress.epoch,
            seconds_per_epoch=progress.seconds / progress.epoch,
            peak_rss_bytes=peak_resident_bytes(),
            parameters=sum(p.numel() for p in network.parameters()),
            split=task.split_name,
            split_hash=task.split_hash,
            seed=config.seed,
            selection=self.metric.selection,
        )
        if self.out is not None:
            self._require_folder()
            self._keep_checkpoint()
            note_machine(self.out, str(self.device))
            write_json(self.out / "result.json", asdict(result))
            discard_states(self.out)
        return result


@contextmanager
def sums_in_fixed_order(wanted: bool, device: torch.device = _CPU) -> Iterator[None]:
    """Let torch use only operators whose sums run in the same order every time.

    On other devices than the CPU an operator that has no fixed order warns instead of failing.
    """
    memory: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    threads = torch.get_num_threads()  # a resumed run takes the number it began with
    filling = memory.fill_uninitialized_memory
    only_warn = device.type != "cpu" if wanted else warned
    torch.use_deterministic_algorithms(wanted or before, warn_only=only_warn)
    # Filling fresh memory would show reads of it; nothing here does, and it costs a pass.
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        memory.fill_uninitialized_memory = filling
        torch.set_num_threads(threads)


@contextmanager
def _few_collections() -> Iterator[None]:
    """Keep the garbage collector from walking over all imported modules again and again."""
    if gc.get_freeze_count():  # somebody else does
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _finite(value: float) -> bool:
    return value - value == 0.0
