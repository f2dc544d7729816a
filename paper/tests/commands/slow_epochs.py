"""``geof`` with epochs that take their time, so that a test meets its runs under way.

Workers import the main module, and with it the slowness.
"""

from __future__ import annotations

import time

from geof.cli import main
from geof.training.checkpoint import EpochReport
from geof.training.trainer import Trainer

SECONDS = 0.15

_epoch = Trainer._epoch


def _slow(self: Trainer, epoch: int) -> EpochReport:
    time.sleep(SECONDS)
    return _epoch(self, epoch)


Trainer._epoch = _slow  # type: ignore[method-assign]

if __name__ == "__main__":
    raise SystemExit(main())
