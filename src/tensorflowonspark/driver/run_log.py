"""A log that goes to an MLflow run: what is to be logged waits in a queue, which a thread sends to the server.

Nothing here imports MLflow: a run can be active only if the program has imported it. With a thread for each log,
neither the training nor its end waits for a server that is slow or down.
"""

import json
import logging
import math
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from tensorflowonspark.run_manifest import Record
from tensorflowonspark.secrecy import HIDDEN, without_secrets
from tensorflowonspark.terminal import CONSOLE, Writer
from tensorflowonspark.transport import is_listening

_log = logging.getLogger(__name__)
_END_SECONDS = 5.0  # for the server to take what is left, at the cluster's end
_KEY, _VALUE = 250, 500  # characters that every version of MLflow's server takes
_PARAMETERS, _METRICS = 100, 1000  # that a request may have
_NOT_IN_KEYS = re.compile(r"[^\w\-. :/]")
_clusters: Counter[str] = Counter()  # that have logged to a run of this process
_lock = Lock()


class RunLog:
    """Sends entries to an MLflow run, in a thread of its own.

    Names begin with the prefix, which is empty for the first cluster of a run; `uri` is the address of its server, or
    its database.
    """

    def __init__(self, client: Any, run_id: str, uri: str, prefix: str = "") -> None:
        self.run_id = run_id
        self.uri = uri
        self.prefix = prefix
        self._client = client
        self._calls = Writer(lost_seconds=math.inf, idle_seconds=_END_SECONDS)
        self._warned = self._given_up = False

    def log_parameters(self, values: Mapping[str, Any]) -> None:
        """Log parameters; one that the run has already keeps its value, which MLflow allows no one to change."""
        texts = {_key(f"{self.prefix}{name}"): _text(value) for name, value in values.items()}

        def send() -> None:
            existing = self._client.get_run(self.run_id).data.params
            from mlflow.entities import Param

            new = [Param(name, value) for name, value in texts.items() if name not in existing]
            for start in range(0, len(new), _PARAMETERS):
                self._client.log_batch(self.run_id, params=new[start : start + _PARAMETERS])

        self.put(send)

    def log_metrics(self, values: Mapping[str, float], step: int, seconds: float) -> None:
        """Log metrics of a step, which is an epoch's number, and of a time in seconds since 1970."""
        numbers = {_key(name): float(value) for name, value in values.items()}

        def send() -> None:
            from mlflow.entities import Metric

            entries = [Metric(name, value, int(seconds * 1000), step) for name, value in numbers.items()]
            for start in range(0, len(entries), _METRICS):
                self._client.log_batch(self.run_id, metrics=entries[start : start + _METRICS])

        self.put(send)

    def log_history(self, history: Mapping[str, Sequence[float]]) -> None:
        """Log metrics that each have a value for every epoch."""
        now = time.time()
        for epoch in range(max(map(len, history.values()), default=0)):
            values = {f"{self.prefix}{name}": each[epoch] for name, each in history.items() if epoch < len(each)}
            self.log_metrics(values, epoch, now)

    def log_tags(self, values: Mapping[str, Any]) -> None:
        """Log tags, whose names begin with that of this package."""
        texts = {_key(f"{self.prefix}tensorflowonspark.{name}"): _text(value) for name, value in values.items()}

        def send() -> None:
            from mlflow.entities import RunTag

            self._client.log_batch(self.run_id, tags=[RunTag(name, value) for name, value in texts.items()])

        self.put(send)

    def log_inputs(self, data: Mapping[str, Record]) -> None:
        """Log the rows of feeds, by name and as a run's manifest has them, as the inputs of the run."""
        rows = [("training", name, each) for name, each in data.items()]
        rows += [("validation", name, {**each, **each["validation"]}) for _, name, each in rows if each["validation"]]

        def send() -> None:
            from mlflow.entities import DatasetInput, InputTag

            context = "mlflow.data.context"
            inputs = [DatasetInput(_dataset(name, each), [InputTag(context, use)]) for use, name, each in rows]
            self._client.log_inputs(self.run_id, inputs)

        if rows:
            self.put(send)

    def log_file(self, name: str, write: Callable[[str], object]) -> None:
        """Log a file, which a function writes to a path that it is given."""

        def send() -> None:
            with tempfile.TemporaryDirectory(prefix="tfos-") as directory:
                path = Path(directory, name)
                write(str(path))
                folder = f"tensorflowonspark/{self.prefix}".rstrip("/")
                self._client.log_artifact(self.run_id, str(path), folder)

        self.put(send)

    def put(self, send: Callable[[], object], what: str = "") -> None:
        """Have the thread call a function, after those before; an error names `what` it sends."""
        self._calls.put(partial(self._try, send, what))

    def close(self, seconds: float = _END_SECONDS) -> bool:
        """Wait until all is sent, at most so many seconds; return whether it is. What is not by then is dropped."""
        if self._given_up or self._calls.drain(seconds):
            return not self._given_up
        self._given_up = True
        reason = _why_silent(self.uri) or f"it has not answered within {seconds:g} s"
        self.warn(f"{reason}, and what is left is dropped")
        return False

    def call(self, what: str, seconds: float, act: Callable[[], object], uri: str = "") -> bool:
        """Call a function that sends something large; wait at most so many seconds, then leave it to a thread.

        It returns whether it was sent. With `uri` that is the address to which it is sent, and not asked if nothing
        listens there.
        """
        if uri and (reason := _why_silent(uri)):
            self.warn(f"{what}: {reason}", once=False)
            return False
        sent: list[object] = []
        self.put(lambda: sent.append(act()), f"{what}: ")
        if not self._calls.drain(seconds):
            self.warn(
                _why_silent(uri or self.uri) or f"{what} is not sent after {seconds:.0f} s, and is left to a thread"
            )
        return bool(sent)

    def warn(self, reason: object, *, once: bool = True) -> None:
        """Warn that MLflow did not take something; with `once` not if it has before."""
        if not (once and self._warned):
            self._warned = True
            uri = without_secrets(self.uri).replace(f"{HIDDEN}@", "")
            text = "MLflow at %s does not take what is logged to run %s: %s. The training goes on without"
            CONSOLE.log(_log, logging.WARNING, text, uri, self.run_id, without_secrets(str(reason)))

    def _try(self, send: Callable[[], object], what: str) -> None:
        try:
            if not self._given_up:
                send()
        except Exception as error:  # of any kind: the training goes on
            self.warn(f"{what}{_first_line(error)}", once=not what)


def open_log() -> RunLog | None:
    """Return a log of the run that is active in this thread; None if there is none, or MLflow is not in use."""
    mlflow = sys.modules.get("mlflow")
    try:
        run = mlflow.active_run() if mlflow is not None else None
        if mlflow is None or run is None:
            return None
        run_id, uri = str(run.info.run_id), str(mlflow.get_tracking_uri())
        client = mlflow.MlflowClient(uri)
    except Exception as error:  # MLflow is half imported, or another version
        CONSOLE.log(_log, logging.WARNING, "MLflow can't be used: %s: %s", type(error).__name__, error)
        return None
    with _lock:
        _clusters[run_id] += 1
        number = _clusters[run_id]
    return RunLog(client, run_id, uri, f"cluster_{number}/" if number > 1 else "")


def _dataset(name: str, rows: Record) -> Any:
    """Return MLflow's description of the rows of a feed."""
    from mlflow.entities import Dataset

    source = {key: rows[key] for key in ("source", "table", "version", "snapshot") if key in rows}
    columns = [{"name": column, "type": kind} for column, kind in rows["columns"].items()]
    texts = map(json.dumps, ({"tags": source}, {"mlflow_colspec": columns}, {"num_rows": rows["rows"]}))
    shown = str(rows.get("table", f"feed {name}" if name.isdigit() else name))
    return Dataset(shown[:_VALUE], rows["checksum"] or "unknown", "code", *texts)


def _key(name: str) -> str:
    return _NOT_IN_KEYS.sub("_", name)[:_KEY]


def _text(value: Any) -> str:
    text = without_secrets(str(value))
    return text if len(text) <= _VALUE else f"{text[: _VALUE - 1]}…"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0]


def _why_silent(uri: str) -> str:
    """Return that no process listens at a server's address, if that is so; else an empty string."""
    url = urlsplit(uri)
    if not url.scheme.startswith("http") or url.hostname is None or getproxies():
        return ""
    address = f"{url.hostname}:{url.port or (443 if url.scheme == 'https' else 80)}"
    return "" if is_listening(address) else f"nothing listens at {address}"
