r"""Options of the recurrent step: names, ranges, their meaning, and what they ask of the kernels.

The statistic :math:`C_{i,b}` of Eq. (8) and its target :math:`\hat z_{i,b}` of Eq. (10) (paper,
section 3.3) have no parameters; backends of :mod:`geof.kernels` compute them. The settings say
when and from what a target is formed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from geof.geometry import JitterSchedule
from geof.kernels import Statistic, StepSpec
from geof.options import Options

Feedback: TypeAlias = Literal["full", "mean", "diagonal", "none"]
Evolution: TypeAlias = Literal["recurrent", "one-shot", "frozen"]
StepOutputs: TypeAlias = Literal["last", "all"]
Pooling: TypeAlias = Literal["mean", "sum"]
Norm: TypeAlias = Literal["none", "layer", "batch"]


@dataclass(frozen=True)
class StepSettings(Options):
    r"""Scalars and switches of the recurrent step.

    Defaults are the paper's where it prints a value; the floor and the jitters are ours.

    The last five fields choose among the variants the paper studies. None of them changes the
    parameters, so a checkpoint loads into every variant.

    Attributes:
        temperature: :math:`\tau > 0` of the neighbourhood weights, Eq. (4).
        target_mix: :math:`\lambda \in (0, 1]`, weight of the residual target, Eq. (12).
        correction_strength: :math:`\gamma \ge 0`, weight of the learned correction, Eq. (12).
        spectral_floor: :math:`\epsilon_s > 0` of the second moment, Eq. (8). The paper does not
            print it; at 1 the target of a node without residuals is the identity frame.
        offdiagonal_bound: :math:`a_{max}` of the admissible box.
        log_scale_bounds: :math:`(\ell_{min}, \ell_{max})` of the admissible box.
        jitter: :math:`\epsilon_0` of the stabilised Cholesky factor, Eq. (51).
        jitter_growth: :math:`\beta`, Eq. (51).
        jitter_retries: :math:`T_{max}`, Eq. (51).
        structure_aware: ``False`` replaces signatures by zero (w/o SA).
        atlas_initialisation: ``False`` starts every node at identity frames (w/o AI).
        frame_transport: ``False`` takes messages and residuals as they are (w/o GT).
        feedback: The statistic behind the target: ``"full"``, ``"mean"``, ``"diagonal"``, or
            ``"none"``, which puts the current coordinates in its place (w/o SF).
        evolution: ``"recurrent"``, ``"one-shot"`` (updated after the first step only) or
            ``"frozen"`` at the initial coordinates (w/o GE).
    """

    temperature: Annotated[float, Field(gt=0)] = 1.0
    target_mix: Annotated[float, Field(gt=0, le=1)] = 0.5
    correction_strength: Annotated[float, Field(ge=0)] = 0.1
    spectral_floor: Annotated[float, Field(gt=0)] = 1.0
    offdiagonal_bound: float = 2.0
    log_scale_bounds: tuple[float, float] = (-5.0, 5.0)
    jitter: float = 1e-6
    jitter_growth: float = 10.0
    jitter_retries: int = 5
    structure_aware: bool = True
    atlas_initialisation: bool = True
    frame_transport: bool = True
    feedback: Feedback = "full"
    evolution: Evolution = "recurrent"


VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "w/o SA": {"structure_aware": False},
    "w/o AI": {"atlas_initialisation": False},
    "w/o GT": {"frame_transport": False},
    "w/o SF": {"feedback": "none"},
    "w/o GE": {"evolution": "frozen"},
    "mean-only": {"feedback": "mean"},
    "diagonal": {"feedback": "diagonal"},
    "one-shot": {"evolution": "one-shot"},
}
"""The paper's names (sections 4.3 and 4.5) and the settings that make them."""


def updates_geometry(settings: StepSettings, step: int) -> bool:
    """Return whether the coordinates change after step ``step`` (from 0)."""
    return settings.evolution == "recurrent" or (settings.evolution == "one-shot" and step == 0)


def step_spec(settings: StepSettings, schedule: JitterSchedule, step: int) -> StepSpec:
    """Translate the settings into what the kernels need for step ``step`` (from 0).

    A step that does not update the geometry, or has no feedback, forms no statistic at all.
    """
    statistic: Statistic | None = None
    if settings.feedback != "none" and updates_geometry(settings, step):
        statistic = settings.feedback
    return StepSpec(
        temperature=settings.temperature,
        statistic=statistic,
        frame_transport=settings.frame_transport,
        spectral_floor=settings.spectral_floor,
        schedule=schedule,
    )
