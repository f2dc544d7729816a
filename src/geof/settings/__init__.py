"""Settings files, ``KEY=VALUE`` words and the presets that ship with the package."""

from geof.settings.files import dump_settings, merge, parse_words, read_settings
from geof.settings.presets import default_preset, load_preset, preset_names

__all__ = [
    "default_preset",
    "dump_settings",
    "load_preset",
    "merge",
    "parse_words",
    "preset_names",
    "read_settings",
]
