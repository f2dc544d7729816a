"""Commands that geof-paper adds to ``geof``, through the entry-point group ``geof.commands``."""
