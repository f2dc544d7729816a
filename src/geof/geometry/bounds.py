r"""The admissible box and the paper's constants (section 3.1; proofs of Lemma 1, Proposition 3).

The box :math:`\mathcal Z = [-a_{max}, a_{max}]^{m(m-1)/2} \times [\ell_{min}, \ell_{max}]^m`
bounds the coordinates; everything Lemma 1 and Proposition 3 promise follows from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from geof.errors import ConfigError
from geof.geometry.log_triangular import block_size_of
from geof.options import require_number


@dataclass(frozen=True)
class AdmissibleBox:
    r"""The set :math:`\mathcal Z` to which coordinates are clipped.

    Args:
        offdiagonal_bound: :math:`a_{max} > 0`.
        log_scale_bounds: :math:`(\ell_{min}, \ell_{max})`, increasing.
    """

    offdiagonal_bound: float = 2.0
    log_scale_bounds: tuple[float, float] = (-5.0, 5.0)

    def __post_init__(self) -> None:
        require_number("offdiagonal_bound", self.offdiagonal_bound, above=0)
        try:
            low, high = map(float, self.log_scale_bounds)
        except (TypeError, ValueError):
            low = high = math.nan
        if not -math.inf < low < high < math.inf:
            raise ConfigError(
                "Expected 'log_scale_bounds' to be two finite numbers, the smaller first "
                f"(got {self.log_scale_bounds!r})."
            )

    def project(self, coords: Tensor) -> Tensor:
        r"""Clip to the box: :math:`\Pi_{\mathcal Z}`, the Euclidean projection (Prop. 3 (i))."""
        size = block_size_of(coords.size(-1))
        bound, (low, high) = self.offdiagonal_bound, self.log_scale_bounds
        offdiagonal = coords[..., :-size].clamp(-bound, bound)
        return torch.cat([offdiagonal, coords[..., -size:].clamp(low, high)], dim=-1)

    def contains(self, coords: Tensor) -> Tensor:
        """Return a boolean ``(...)``: is the block inside the box? A NaN is outside."""
        coords = coords.detach()
        return (self.project(coords) == coords).all(-1)


class FrameBounds(NamedTuple):
    r"""Lemma 1's constants for frames inside the box, Eqs. (17) and (18).

    Attributes:
        sigma_plus: :math:`\|L\|_2 \le \sigma_+`.
        sigma_minus: :math:`\|L^{-1}\|_2 \le \sigma_-^{-1}`.
        kappa_L: :math:`\|L(z) - L(z')\|_F \le \kappa_L \|z - z'\|_2`.
    """

    sigma_plus: float
    sigma_minus: float
    kappa_L: float  # noqa: N815 - the paper's name


def frame_bounds(block_size: int, box: AdmissibleBox) -> FrameBounds:
    r"""Return :math:`\sigma_+, \sigma_-, \kappa_L` of Lemma 1 for blocks of size ``m``."""
    m = block_size
    low, high = box.log_scale_bounds
    nu = box.offdiagonal_bound * math.sqrt(m * (m - 1) / 2)
    a_bar = box.offdiagonal_bound * math.exp(-low)
    substitution = math.sqrt(m) * _power(1 + a_bar, m - 1)
    neumann = sum(_power(nu * math.exp(-low), k) for k in range(m))
    kappa_0 = min(substitution, neumann)
    return FrameBounds(math.exp(high) + nu, math.exp(low) / kappa_0, 1 + math.exp(high))


def _power(base: float, exponent: int) -> float:
    """Return ``base ** exponent``, infinite where Python would raise: a vacuous bound is one."""
    try:
        return base**exponent
    except OverflowError:
        return math.inf


class StepNorms(NamedTuple):
    r"""The norms that enter Proposition 3 (ii).

    Attributes:
        message: :math:`w_\phi = \|W_\phi\|_2`.
        gate: :math:`w_r = \|W_r\|_2`.
        controller_hidden: :math:`\|W_{\Gamma,1}\|_2`.
        controller_output: :math:`\|W_{\Gamma,2}\|_2`.
        hidden_bias: :math:`\|b_{\Gamma,1}\|_2`.
        output_bias: :math:`\|b_{\Gamma,2}\|_2`.
        signature: :math:`\bar U = \max_i \|u_i\|_2`.
    """

    message: float
    gate: float
    controller_hidden: float
    controller_output: float
    hidden_bias: float
    output_bias: float
    signature: float


def step_norms(
    message: Tensor,
    gate: Tensor,
    controller_hidden: tuple[Tensor, Tensor],
    controller_output: tuple[Tensor, Tensor],
    *,
    signature_bound: float,
) -> StepNorms:
    r"""Return the norms of a step's parameters, spectral for matrices, Euclidean for biases.

    Args:
        message: :math:`W_\phi`.
        gate: :math:`W_r`.
        controller_hidden: :math:`W_{\Gamma,1}, b_{\Gamma,1}`.
        controller_output: :math:`W_{\Gamma,2}, b_{\Gamma,2}`.
        signature_bound: :math:`\bar U`, a bound on every :math:`\|u_i\|_2`.
    """
    (hidden, hidden_bias), (output, output_bias) = controller_hidden, controller_output
    return StepNorms(
        message=_spectral_norm(message),
        gate=_spectral_norm(gate),
        controller_hidden=_spectral_norm(hidden),
        controller_output=_spectral_norm(output),
        hidden_bias=float(hidden_bias.detach().norm()),
        output_bias=float(output_bias.detach().norm()),
        signature=signature_bound,
    )


def _spectral_norm(weight: Tensor) -> float:
    return float(torch.linalg.matrix_norm(weight.detach().double(), ord=2))


class StepLipschitz(NamedTuple):
    r"""The constants of the proof of Proposition 3 (ii), each bounding one quantity's change.

    With :math:`d = d_\infty(S, S')` and any node: environment :math:`\le c_h d`, weights in
    :math:`\ell_1` :math:`\le c_\omega d`, a message :math:`\le c_m d`, the aggregate
    :math:`\le c_{\bar\xi} d`, the new features :math:`\le c_\xi d`, a block's statistic
    :math:`\le c_C d`, the target :math:`\le c_{\hat Z} d`, the correction
    :math:`\le c_\Delta d`, and one whole step :math:`\le K d`.
    """

    environment: float
    weight: float
    message: float
    aggregate: float
    features: float
    moment: float
    target: float
    correction: float
    step: float


def step_lipschitz(
    block_size: int,
    blocks: int,
    box: AdmissibleBox,
    norms: StepNorms,
    *,
    feature_bound: float,
    temperature: float,
    spectral_floor: float,
    jitter: float,
    target_mix: float,
    correction_strength: float,
) -> StepLipschitz:
    r"""Return the one-step Lipschitz constant :math:`K` of Proposition 3 (ii) and its parts.

    .. math::
        K = c_\xi + (1 - \lambda) + \lambda c_{\hat Z} + \gamma c_\Delta

    It holds on :math:`\mathcal D = \{\|\xi_i\|_2 \le \Xi,\ z_{i,b} \in \mathcal Z\}` and does not
    depend on node degrees. :math:`\bar G` is bounded by the norms of the controller, using
    :math:`|\operatorname{SiLU}(x)| \le |x|`. It is a bound, and a loose one for a wide box; for
    large blocks in a wide box it exceeds the floating-point range and is infinite. It takes the
    jitter as fixed, that is, no block needs a retry.

    Args:
        block_size: ``m``.
        blocks: ``B``.
        box: The admissible box.
        norms: Norms of the step's parameters and of the signatures.
        feature_bound: :math:`\Xi`.
        temperature: :math:`\tau`.
        spectral_floor: :math:`\epsilon_s`.
        jitter: :math:`\eta`.
        target_mix: :math:`\lambda`.
        correction_strength: :math:`\gamma`.
    """
    plus, minus, kappa = frame_bounds(block_size, box)
    if _power(plus / minus if minus > 0 else math.inf, 4) == math.inf:
        return StepLipschitz(*[math.inf] * 9)
    xi, w_phi = feature_bound, norms.message
    c_h = max(kappa * xi, plus)
    c_omega = 16 * (plus * xi) * c_h / temperature
    m_bar = plus / minus * w_phi * xi
    c_m = w_phi * (plus * kappa * xi / minus**2 + kappa * xi / minus + plus / minus)
    c_agg = m_bar * c_omega + c_m
    c_xi = 2 + c_agg + norms.gate / 4 * (1 + c_agg) * (m_bar + xi)

    d_bar = m_bar + w_phi * xi
    c_moment = d_bar**2 * c_omega + 2 * d_bar * (c_m + w_phi)
    floor = spectral_floor + jitter
    l_chol = math.sqrt(d_bar**2 + floor) / floor
    c_target = math.sqrt(blocks) * max(1.0, floor**-0.5) * l_chol * c_moment

    radius = xi + m_bar + norms.signature
    hidden = norms.controller_hidden * radius + norms.hidden_bias
    g_bar = norms.controller_output * hidden + norms.output_bias
    l_gamma = 1.1 * norms.controller_output * norms.controller_hidden
    c_delta = math.sqrt(3 * blocks) * max(g_bar, 1.0) * l_gamma * (1 + c_agg)

    step = c_xi + (1 - target_mix) + target_mix * c_target + correction_strength * c_delta
    return StepLipschitz(c_h, c_omega, c_m, c_agg, c_xi, c_moment, c_target, c_delta, step)
