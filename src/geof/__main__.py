"""Run the command line as ``python -m geof``, which is how ``torchrun -m geof`` starts it."""

import sys

from geof.cli import main

sys.exit(main())
