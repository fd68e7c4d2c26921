"""In the Python processes of an executor: gives nodes the same pid on each host, as far as the kernel has it free."""

import subprocess
from pathlib import Path

_start = subprocess.Popen.__init__


def _start_at(self, args, *more, **options):
    if "tensorflowonspark.node" in args:
        Path("/proc/sys/kernel/ns_last_pid").write_text("5000")
    _start(self, args, *more, **options)


subprocess.Popen.__init__ = _start_at
