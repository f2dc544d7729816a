"""Run the command line as ``python -m geof.cli``."""

import sys

from geof.cli import main

sys.exit(main())
