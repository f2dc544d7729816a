"""Pure functions of the geometry: coordinates, frames, metrics, bounds, the stabilised factor."""

from geof.geometry.bounds import (
    AdmissibleBox,
    FrameBounds,
    StepLipschitz,
    StepNorms,
    frame_bounds,
    step_lipschitz,
)
from geof.geometry.cholesky import (
    JitterSchedule,
    StabilisedFactor,
    stabilised_cholesky,
    target_coordinates,
)
from geof.geometry.log_triangular import (
    Ellipsoids,
    apply_frame,
    block_size_of,
    coordinates_from_frame,
    coordinates_from_metric,
    ellipsoids,
    frame_from_coordinates,
    log_determinant,
    metric_from_coordinates,
    num_coordinates,
    split_coordinates,
    strictly_lower_matrix,
    strictly_lower_vector,
    triangular_solve,
)

__all__ = [
    "AdmissibleBox",
    "Ellipsoids",
    "FrameBounds",
    "JitterSchedule",
    "StabilisedFactor",
    "StepLipschitz",
    "StepNorms",
    "apply_frame",
    "block_size_of",
    "coordinates_from_frame",
    "coordinates_from_metric",
    "ellipsoids",
    "frame_bounds",
    "frame_from_coordinates",
    "log_determinant",
    "metric_from_coordinates",
    "num_coordinates",
    "split_coordinates",
    "stabilised_cholesky",
    "step_lipschitz",
    "strictly_lower_matrix",
    "strictly_lower_vector",
    "target_coordinates",
    "triangular_solve",
]
