"""Presets ``matched`` of the second-order controls: GeoF's recipe and its number of parameters.

They follow GeoF ``tuned``: whenever a search changes it, widths and rank are searched anew and the
recipe is taken over, as far as the host has the option.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from geof.data.catalogue import CATALOGUE
from geof.data.molecules import BOND_SIZES, RING_SIZE
from geof.errors import ConfigError
from geof.io import write_atomically
from geof.methods.interface import InputShape, TaskKind
from geof.methods.registry import get_method, load_preset
from geof.training import Network, RunConfig
from geof_paper.baselines.parameter_matching import ParameterMatch, match_parameters
from geof_paper.grid.cells import Benchmark
from geof_paper.grid.preset_text import as_yaml, lines_of, sections

HOSTS = ("gcn-so", "gin-so", "argnn-so")
PRESET = "matched"
INNER_RATIOS = {"gcn-so": (1.0,), "gin-so": (1.0, 0.5, 2.0), "argnn-so": (1.0, 0.5, 2.0)}

FEATURES = {"FRANKENSTEIN": 5}
"""Where the recorded runs had other features than the catalogue names: no node attributes."""

_NAMES = {"num_layers": "steps", "use_signature": "signature_features"}  # the host's and GeoF's
_WIDTHS = ("hidden_channels", "blocks", "inner_channels", "rank")
_AS_GEOF = "as GeoF tuned"


def parameters(method: str, task: TaskKind, dataset: str, tree: dict[str, Any]) -> int:
    """Return the size of the whole network, built without memory."""
    facts = CATALOGUE[dataset].expected
    config = RunConfig(
        method=method, task=task, options=tree["options"], readout=tree.get("readout", {})
    )
    bonds = (*BOND_SIZES, RING_SIZE) if tree.get("data", {}).get("edge_columns") == "use" else ()
    features = FEATURES.get(dataset, facts.features)
    shape = InputShape(features, 17, facts.classes, edge_categories=bonds)
    with torch.device("meta"):
        network = Network(config, shape)
    return sum(parameter.numel() for parameter in network.parameters())


def size_of_geof(task: TaskKind, dataset: str) -> int:
    """Return the size of GeoF's network."""
    return parameters("geof", task, dataset, load_preset("geof", "tuned", task, dataset))


def matching_widths(
    host: str, task: TaskKind, dataset: str, tree: dict[str, Any]
) -> ParameterMatch:
    """Return widths and rank for which a control with this recipe has GeoF's size."""
    geof = load_preset("geof", "tuned", task, dataset)["options"]
    block_size = geof["hidden_channels"] // geof["blocks"]

    def count(width: int, inner: int, rank: int) -> int:
        widths = {"hidden_channels": width, "blocks": width // block_size}
        options = tree["options"] | widths | {"inner_channels": inner, "rank": rank}
        return parameters(host, task, dataset, tree | {"options": options})

    return match_parameters(
        count,
        size_of_geof(task, dataset),
        block_size=block_size,
        near=geof["hidden_channels"],
        inner_ratios=INNER_RATIOS[host],
    )


def write_matched(benchmarks: Iterable[Benchmark]) -> list[Path]:
    """Let the controls' presets of these benchmarks follow GeoF's; return the files."""
    written: dict[Path, None] = {}
    for task, dataset in benchmarks:
        for host in HOSTS:
            presets = get_method(host).presets
            if presets is None:
                raise ConfigError(f"Expected '{host}' to have presets (got none).")
            file = presets / PRESET / f"{task}.yaml"
            before, _, after = sections(file.read_text(), dataset)
            lines = lines_of(_following(host, task, dataset))
            write_atomically(file, f"{before}{dataset}:\n{lines}{after}".encode())
            written[file] = None
    return list(written)


def _following(host: str, task: TaskKind, dataset: str) -> dict[str, tuple[str, str]]:
    """Return a dataset's section: dotted options with the text of their value and its reason."""
    common = load_preset(host, PRESET, task, None)  # of all datasets
    geof = load_preset("geof", "tuned", task, dataset)
    own: dict[str, Any] = {key: value for key, value in geof.items() if not isinstance(value, dict)}
    for name in common["options"]:  # in its order: the same file every time
        if name not in _WIDTHS and _NAMES.get(name, name) in geof["options"]:
            own[f"options.{name}"] = geof["options"][_NAMES.get(name, name)]
    own |= {f"readout.{name}": value for name, value in geof.get("readout", {}).items()}
    found = {
        key: (as_yaml(value), _AS_GEOF)
        for key, value in own.items()
        if _value(common, key) != value
    }
    options = {k.partition(".")[2]: v for k, v in own.items() if k.startswith("options.")}
    readout = {k.partition(".")[2]: v for k, v in own.items() if k.startswith("readout.")}
    tree = {
        "options": common["options"] | options,
        "readout": common.get("readout", {}) | readout,
    }
    match = matching_widths(host, task, dataset, tree)
    why = f"matches GeoF tuned: {match.parameters} parameters against {size_of_geof(task, dataset)}"
    block_size = geof["options"]["hidden_channels"] // geof["options"]["blocks"]
    blocks = str(match.width // block_size), f"blocks of {block_size}, as GeoF tuned"
    found |= {"options.hidden_channels": (str(match.width), why), "options.blocks": blocks}
    if len(INNER_RATIOS[host]) > 1:
        found["options.inner_channels"] = (str(match.inner), why)
    return found | {"options.rank": (str(match.rank), why)}


def _value(tree: dict[str, Any], key: str) -> Any:
    section, dot, name = key.partition(".")
    return tree.get(section, {}).get(name) if dot else tree.get(key)
