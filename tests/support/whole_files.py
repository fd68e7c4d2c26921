"""A mount that takes files as a whole, as those of object stores do: ``whole_files.py FOLDER MOUNT``.

It refuses, with "Operation not supported", what a volume of Databricks refuses: a write that does not follow the one
before, an append to a file that is there, a hole, a link. It ends when it is unmounted, or with its standard input.
"""

import errno
import os
import subprocess
import sys
from contextlib import suppress
from threading import Thread

import mfusepy


def _refuse():
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


class WholeFiles(mfusepy.Operations):
    """Files that are written once, from their begin to their end."""

    use_ns = True  # times are numbers of nanoseconds

    def __init__(self, folder):
        self._folder = folder
        self._ends = {}  # of the open files that are written: where the next write must begin

    def init(self, path):
        sys.stdout.write("up\n")
        sys.stdout.flush()

    def getattr(self, path, fh=None):
        found = os.fstat(fh) if fh else os.lstat(self._folder + path)
        names = "st_atime_ns", "st_ctime_ns", "st_mtime_ns"
        times = {name.removesuffix("_ns"): getattr(found, name) for name in names}
        kept = "st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_ino", "st_blocks"
        return {**{name: getattr(found, name) for name in kept}, **times}

    def readdir(self, path, fh):
        return [".", "..", *os.listdir(self._folder + path)]

    def create(self, path, mode, fi=None):
        return self._written(os.open(self._folder + path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode))

    def open(self, path, flags):
        if flags & os.O_ACCMODE == os.O_RDONLY:
            return os.open(self._folder + path, os.O_RDONLY)
        if (flags & os.O_APPEND or not flags & os.O_TRUNC) and os.stat(self._folder + path).st_size:
            _refuse()
        return self._written(os.open(self._folder + path, os.O_RDWR | os.O_TRUNC))

    def _written(self, opened):
        self._ends[opened] = 0
        return opened

    def read(self, path, size, offset, fh):
        return os.pread(fh, size, offset)

    def write(self, path, data, offset, fh):
        if offset != self._ends[fh]:
            _refuse()
        self._ends[fh] += os.pwrite(fh, data, offset)
        return len(data)

    def truncate(self, path, length, fh=None):
        if length:
            _refuse()
        os.truncate(self._folder + path, 0)

    def release(self, path, fh):
        self._ends.pop(fh, None)
        os.close(fh)

    def flush(self, path, fh):
        return 0

    def fsync(self, path, datasync, fh):
        return 0

    def chmod(self, path, mode):
        return 0  # neither refused nor done

    def chown(self, path, uid, gid):
        return 0

    def utimens(self, path, times=None):
        return 0

    def link(self, target, source):
        _refuse()

    def symlink(self, target, source):
        _refuse()

    def mkdir(self, path, mode):
        os.mkdir(self._folder + path, mode)

    def rename(self, old, new):
        os.rename(self._folder + old, self._folder + new)

    def rmdir(self, path):
        os.rmdir(self._folder + path)

    def unlink(self, path):
        os.unlink(self._folder + path)

    def statfs(self, path):
        found = os.statvfs(self._folder + path)
        names = "f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_favail", "f_ffree", "f_files", "f_frsize"
        return {name: getattr(found, name) for name in (*names, "f_namemax")}


def _main(folder, mount):
    def end():
        sys.stdin.read()
        subprocess.run(["umount", "--lazy", mount], check=False)

    Thread(target=end, daemon=True).start()
    with suppress(KeyboardInterrupt):
        mfusepy.FUSE(
            WholeFiles(folder), mount, foreground=True, nothreads=True, allow_other=False, fsname="whole-files"
        )


if __name__ == "__main__":
    _main(*sys.argv[1:])
