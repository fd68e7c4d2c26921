"""Records of any size in odd shapes: valid for Protocol Buffers, and made of as many and as short parts as possible."""

from itertools import islice, product

_LETTERS = b"abcdefghijklmnopqrstuvwxyz0123456789_-"


def part(tag, content):
    """Return a field with a length."""
    size, length = len(content), b""
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([tag]) + length + bytes([size]) + content


def entry(name, *parts):
    """Return an ``Example`` of one feature."""
    return part(0x0A, part(0x0A, part(0x0A, name) + b"".join(parts)))


def values(kind, content):
    """Return an ``Example`` with one list of values in the feature x."""
    return entry(b"x", part(0x12, part(kind << 3 | 2, content)))


def names(size):
    return part(
        0x0A, b"".join(b"\x0a\x06\x0a\x04" + bytes(each) for each in islice(product(_LETTERS, repeat=4), size // 8))
    )


def steps(content):
    """Return a ``SequenceExample`` with one feature list."""
    return part(0x12, part(0x0A, part(0x0A, b"x") + content))


_UNKNOWN, _ONE = b"\x78\x01", part(0x12, part(0x1A, b"\x08\x01"))
_TEXTS, _FLOATS, _INTS = "x array<string>", "x array<float>", "x array<bigint>"
_STEPS = "x array<array<bigint>>"
# What makes a record of about so many bytes, the schema to read it with, and what may be said of it.
SHAPES = {
    "unknown fields of a record": (lambda n: values(3, b"\x08\x01") + _UNKNOWN * (n // 2), _INTS),
    "unknown fields of a map": (lambda n: part(0x0A, _UNKNOWN * (n // 2)), _INTS),
    "unknown fields of a feature": (lambda n: entry(b"x", part(0x12, _UNKNOWN * (n // 2))), _INTS),
    "unknown fields of a list": (lambda n: values(3, _UNKNOWN * (n // 2)), _INTS),
    "groups": (lambda n: values(3, b"\x08\x01") + b"\x7b\x7c" * (n // 2), _INTS),
    "empty strings": (lambda n: values(1, b"\x0a\x00" * (n // 2)), _TEXTS),
    "short strings": (lambda n: values(1, b"\x0a\x01a" * (n // 3)), _TEXTS),
    "one string": (lambda n: values(1, part(0x0A, b"a" * n)), "x string"),
    "single integers": (lambda n: values(3, b"\x08\x01" * (n // 2)), _INTS),
    "empty packs of integers": (lambda n: values(3, b"\x0a\x00" * (n // 2)), _INTS),
    "short integers": (lambda n: values(3, part(0x0A, b"\x01" * n)), _INTS),
    "longer integers": (lambda n: values(3, part(0x0A, b"\x81\x01" * (n // 2))), _INTS),
    "single floats": (lambda n: values(2, b"\x0d\x00\x00\x80\x3f" * (n // 5)), _FLOATS),
    "floats": (lambda n: values(2, part(0x0A, b"\x00\x00\x80\x3f" * (n // 4))), _FLOATS),
    "empty lists": (lambda n: entry(b"x", part(0x12, b"\x1a\x00" * (n // 2))), _INTS),
    "lists of two kinds": (lambda n: entry(b"x", part(0x12, b"\x12\x00\x1a\x00" * (n // 4))), _INTS),
    "values of an entry": (lambda n: entry(b"x", b"\x12\x00" * (n // 2)), _INTS),
    "keys of an entry": (lambda n: part(0x0A, part(0x0A, b"\x0a\x00" * (n // 2) + part(0x0A, b"x") + _ONE)), _INTS),
    "empty entries": (lambda n: part(0x0A, b"\x0a\x00" * (n // 2)), _INTS),
    "entries of one name": (lambda n: part(0x0A, b"\x0a\x03\x0a\x01x" * (n // 5)), _INTS),
    "names": (names, _INTS),
    "a long name": (lambda n: entry(b"x" * n), _INTS),
    "maps": (lambda n: b"\x0a\x00" * (n // 2), _INTS),
    "maps of an entry": (lambda n: b"\x0a\x02\x0a\x00" * (n // 4), _INTS),
    "empty steps": (lambda n: steps(part(0x12, b"\x0a\x00" * (n // 2))), _STEPS),
    "short steps": (lambda n: steps(part(0x12, b"\x0a\x06\x1a\x04\x08\x01\x08\x01" * (n // 8))), _STEPS),
    "lists of steps": (lambda n: steps(b"\x12\x00" * (n // 2)), _STEPS),
}  # fmt: skip
REFUSED = {
    "empty lists", "lists of two kinds", "values of an entry", "keys of an entry", "empty entries",
    "entries of one name", "maps", "maps of an entry", "empty steps", "lists of steps",
}  # fmt: skip
