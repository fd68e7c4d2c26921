"""The largest of each of some sizes while something runs."""

import threading

_SECONDS = 0.05


class PeakSampler:
    """Samples sizes in a thread, every 50 ms of a block, and keeps the largest of each in `peaks`.

    A subclass returns them by name from `sizes`.
    """

    def __init__(self):
        self.peaks = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        while not self._stop.wait(_SECONDS):
            for name, size in self.sizes().items():
                self.peaks[name] = max(size, self.peaks.get(name, 0))
