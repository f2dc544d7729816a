"""What other distributions add: entry-point groups, and what is known of ``geof-paper``.

Nothing heavy is imported here, so that the command line can say what is missing at once.
"""

from __future__ import annotations

from importlib import metadata

METHODS = "geof.methods"
"""Group of methods: an entry's name is the method's, its value the module that registers it."""

COMMANDS = "geof.commands"
"""Group of commands: an entry's value is a module with ``add_command``."""

PAGES = "geof.pages"
"""Group of pages ``geof report`` can make of other folders than a run's: an entry's value is a
function that takes the folder and returns the page's content and script."""

INSTALL_PAPER = "pip install ./paper (in a checkout of the project)"

PAPER_METHODS = (
    *("gcn-classic", "sage-classic", "gat-classic", "gin", "ml2-gcl", "amp", "wavegc", "sparrow"),
    *("g2former", "hgcn", "d-gcn", "spdgnn", "ace-hgnn", "bec-gnn", "gnrf", "argnn"),
    *("gcn-so", "gin-so", "argnn-so"),
)
"""The methods of ``geof-paper``."""

PAPER_COMMANDS = {
    "bench": "time and memory beside other networks",
    "reproduce": "the paper's tables and figures",
    "results": "run and show the recorded results",
}
"""The commands of ``geof-paper`` and what they are for."""


def entry_points(group: str) -> dict[str, metadata.EntryPoint]:
    """Return what installed packages add to a group, by name, in alphabetical order."""
    found = {entry.name: entry for entry in metadata.entry_points(group=group)}
    return dict(sorted(found.items()))
