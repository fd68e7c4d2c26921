"""An S3 that answers late: the files of a directory, read only, each answer after some milliseconds.

It is one thread without a library, so that it takes little of the processors that it shares with what is measured.
"""

import asyncio
import sys
import threading
from collections import Counter
from datetime import datetime, timezone
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_PAGE = 1000  # keys of one answer, as in S3


class ObjectStore:
    """The files below a directory, as the objects of the bucket ``bucket``, from now until `close`.

    Parameters
    ----------
    directory : path
        The files; the store reads them anew for each answer, and lists them anew for each first page.
    seconds : float
        From a request to its answer.

    Attributes
    ----------
    address : str
        Its URL.
    requests : Counter
        How often each object was asked for, by the method and the key; listings by ``("LIST", prefix)``.
    answer : callable
        Takes a method and a key; returns None, or a status and further seconds to answer with in place of the object.
    """

    def __init__(self, directory, seconds=0.0):
        self.directory = Path(directory)
        self.seconds = seconds
        self.requests = Counter()
        self._keys = []  # as the first page of the last listing had them
        self.answer = lambda _method, _key: None
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=1024)
        )
        self.address = "http://{}:{}".format(*self._server.sockets[0].getsockname())
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="object-store")
        self._thread.start()

    def close(self):
        """End it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._server.close()
        self._loop.close()

    def settings(self):
        """Return Hadoop's settings with which it is reached."""
        of = {"endpoint": self.address, "access.key": "one", "secret.key": "two", "path.style.access": "true"}
        return {f"fs.s3a.{name}": value for name, value in of.items()}

    def respond(self, method, target, headers):
        """Return the seconds after which to answer, the status, the headers and the body."""
        url = urlsplit(target)
        _, _, key = unquote(url.path).lstrip("/").partition("/")
        if not key:
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            self.requests["LIST", query.get("prefix", "")] += 1
            return self.seconds, 200, {"Content-Type": "application/xml"}, self._listing(query)
        self.requests[method, key] += 1
        status, further = self.answer(method, key) or (200, 0)
        path = self.directory / key
        if status != 200:
            return self.seconds + further, status, {}, _error(status)
        if not path.is_file():
            return self.seconds + further, 404, {}, _error(404)
        found, body = path.stat(), path.read_bytes()
        about = {"ETag": f'"{found.st_mtime_ns:x}"', "Last-Modified": formatdate(found.st_mtime, usegmt=True)}
        if "range" in headers:
            begin, _, end = headers["range"].removeprefix("bytes=").partition("-")
            about["Content-Range"] = f"bytes {begin}-{end}/{len(body)}"
            status, body = 206, body[int(begin) : int(end) + 1]
        return self.seconds + further, status, about, body

    def _listing(self, query):
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        if not after:
            top = self.directory / prefix.rpartition("/")[0]
            self._keys = sorted(str(each.relative_to(self.directory)) for each in top.rglob("*") if each.is_file())
        delimiter, entries = query.get("delimiter"), {}
        for key in self._keys:
            if key.startswith(prefix):
                rest = key[len(prefix) :]
                folder = delimiter is not None and delimiter in rest
                name = prefix + rest.partition(delimiter)[0] + delimiter if folder else key
                if name > after:
                    entries[name] = folder
        page = list(entries.items())[: min(_PAGE, int(query.get("max-keys", _PAGE)))]
        shown = [_folder(name) if folder else _object(name, self.directory / name) for name, folder in page]
        more = len(page) < len(entries)
        token = f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>" if more else ""
        return (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>'
            f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount><MaxKeys>{_PAGE}</MaxKeys>{token}"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{''.join(shown)}</ListBucketResult>"
        ).encode()


def _folder(name):
    return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"


def _object(name, path):
    found = path.stat()
    when = datetime.fromtimestamp(found.st_mtime, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return (
        f"<Contents><Key>{escape(name)}</Key><LastModified>{when}</LastModified><Size>{found.st_size}</Size>"
        f'<ETag>"{found.st_mtime_ns:x}"</ETag></Contents>'
    )


def _error(status):
    code = {404: "NoSuchKey", 503: "SlowDown"}.get(status, "InternalError")
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


class _Connection(asyncio.Protocol):
    """One connection, whose requests have no bodies and are answered one after another."""

    def __init__(self, store):
        self._store = store
        self._data = b""

    def connection_made(self, transport):
        self._transport = transport

    def data_received(self, data):
        self._data += data
        while b"\r\n\r\n" in self._data:
            head, _, self._data = self._data.partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            method, target, _ = first.split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
            try:
                seconds, status, about, body = self._store.respond(method, target, headers)
            except Exception as error:  # else the client would wait for ever
                seconds, status, about, body = 0, 400, {}, repr(error).encode()
            text = f"HTTP/1.1 {status} -\r\nContent-Length: {len(body)}\r\n"
            text += "".join(f"{name}: {value}\r\n" for name, value in about.items())
            whole = f"{text}\r\n".encode() + (b"" if method == "HEAD" else body)
            asyncio.get_running_loop().call_later(seconds, self._transport.write, whole)


if __name__ == "__main__":
    store = ObjectStore(sys.argv[1], float(sys.argv[2]))
    print(store.address, flush=True)
    sys.stdin.read()
    store.close()
