"""Run the command line as ``python -m geof.cli``."""

import sys

from geof.cli.main import main

sys.exit(main())
