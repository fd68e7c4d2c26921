"""The CRC-32C checksums of records: of one record, and of all records of a buffer in one call.

A CRC is linear over exclusive or: without its initial and final inversion, the register after ``a + b`` is the register
after ``a``, shifted by the length of ``b``, exclusive or the register after ``b``. So the register after a whole buffer
follows from the stored checksums of its records, without a look at their data, and must be equal to the register that
one call computes from the buffer.
"""

from functools import cache

import google_crc32c
import numpy as np
import numpy.typing as npt

from tensorflowonspark.tfrecords.wire_format import Bytes, Ints, numbers_at

Words = npt.NDArray[np.uint32]

HEADER_BYTES = 12  # before the data of a record: its length, and the checksum of that
FOOTER_BYTES = 4  # behind them: their checksum
_MASK_ADDED = np.uint32(0xA282EAD8)  # by the format: a checksum of data that hold their own would be constant
_INVERTED = 0xFFFFFFFF  # a register of CRC-32C begins as this, and ends inverted
_FEW_RECORDS = 32  # up to this number a call for each is faster
_DIGIT = 32  # the base in which distances are written: so many tables for each digit, and few digits
_CALLED = 1 << 10  # bytes by which a call shifts a register, beyond tables do


def masked(crc: Words) -> Words:
    """Return checksums as they are stored."""
    found: Words = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + _MASK_ADDED
    return found


def masked_crc(data: bytes) -> int:
    """Return the checksum of some bytes as it is stored."""
    crc = int(google_crc32c.value(data))
    return (crc >> 15 | crc << 17 & _INVERTED) + int(_MASK_ADDED) & _INVERTED


def _unmasked(stored: Words) -> Words:
    turned = stored - _MASK_ADDED
    found: Words = (turned >> np.uint32(17)) | (turned << np.uint32(15))
    return found


# That of 8 bytes is the exclusive or of the contribution of each byte at its position.
_OF_ZEROS = google_crc32c.value(bytes(8))
_CONTRIBUTIONS = np.array(
    [
        [google_crc32c.value(bytes(place) + bytes([byte]) + bytes(7 - place)) ^ _OF_ZEROS for byte in range(256)]
        for place in range(8)
    ],
    np.uint32,
)


def length_crc(lengths: npt.NDArray[np.unsignedinteger]) -> Words:
    """Return the masked checksums of lengths, of type ``<u8``."""
    return masked(_plain_length_crc(lengths))


def _plain_length_crc(lengths: npt.NDArray[np.unsignedinteger]) -> Words:
    crc = np.full(len(lengths), _OF_ZEROS, np.uint32)
    places = np.ascontiguousarray(lengths, "<u8").view(np.uint8).reshape(-1, 8)
    longest = int(lengths.max()) if len(lengths) else 0
    for place in range((longest.bit_length() + 7) // 8):
        crc ^= _CONTRIBUTIONS[place].take(places[:, place])
    return crc


def wrong_data(array: Bytes, start: Ints, end: Ints) -> Ints:
    """Return the numbers of the records whose data do not match the checksum behind them, in ascending order.

    The spans are those of records whose lengths match their checksums, one frame after the other. A single wrong record
    is always found. The differences of several cancel each other with a probability of 2**-32, as improbable as damage
    to a record that does not change its checksum.
    """
    if len(start) > _FEW_RECORDS and _all_match(array, start, end):
        return np.empty(0, np.int64)
    crc = google_crc32c.value
    found = [crc(array[begin:stop]) for begin, stop in zip(start.tolist(), end.tolist(), strict=True)]
    return np.flatnonzero(masked(np.array(found, np.uint32)) != numbers_at(array, end, "<u4"))


def _all_match(array: Bytes, start: Ints, end: Ints) -> bool:
    """Return whether the register after the whole frames is the one that follows from the stored checksums."""
    first, behind = int(start[0]) - HEADER_BYTES, int(end[-1]) + FOOTER_BYTES
    lengths = (end - start).view(np.uint64)
    plain = _plain_length_crc(lengths)
    # After a header, as if the register were inverted there: where a record's checksum begins.
    register = _shifted(plain ^ masked(plain) ^ np.uint32(_INVERTED ^ _register(8)), 4) ^ np.uint32(_INVERTED)
    stored = numbers_at(array, end, "<u4").astype(np.uint32, copy=False)
    footer = _unmasked(stored) ^ stored ^ np.uint32(_INVERTED)
    register[1:] ^= _shifted(footer[:-1], FOOTER_BYTES + HEADER_BYTES)
    expected = _summed(register, behind - start) ^ int(_shifted(footer[-1:], FOOTER_BYTES)[0])
    return google_crc32c.extend(_INVERTED, array[first:behind]) ^ _INVERTED == expected  # type: ignore[no-any-return]


def _summed(register: Words, distance: Ints) -> int:
    """Return the exclusive or of registers, each shifted by its distance in bytes; the distances decrease."""
    unit = 1
    while int(distance[0]):
        register = _by_digits(register, distance % _DIGIT, unit)
        distance //= _DIGIT
        firsts = np.flatnonzero(distance[1:] != distance[:-1]) + 1
        if len(firsts) + 1 < len(distance):
            firsts = np.append([0], firsts)
            register, distance = np.bitwise_xor.reduceat(register, firsts), distance[firsts]
        unit *= _DIGIT
    return int(register[0])


def _shifted(register: Words, count: int) -> Words:
    """Return registers after `count` zero bytes."""
    table, places = _table(count), np.ascontiguousarray(register, "<u4").view(np.uint8).reshape(-1, 4)
    found: Words = table[0].take(places[:, 0])
    for place in range(1, 4):
        found ^= table[place].take(places[:, place])
    return found


def _by_digits(register: Words, digit: Ints, unit: int) -> Words:
    """Return registers, each after `unit` * `digit` zero bytes."""
    table, places = _digit_tables(unit), np.ascontiguousarray(register, "<u4").view(np.uint8).reshape(-1, 4)
    at = digit * 256
    found: Words = table[0].take(at + places[:, 0])
    for place in range(1, 4):
        found ^= table[place].take(at + places[:, place])
    return found


@cache
def _digit_tables(unit: int) -> Words:
    """Return the tables for shifts by 0, 1, 2 and more units, one behind the other."""
    bits = [np.left_shift(np.uint32(1), np.arange(32, dtype=np.uint32))]
    for _ in range(_DIGIT - 1):
        bits.append(_shifted(bits[-1], unit))
    return _contributions(np.stack(bits))


@cache
def _table(count: int) -> Words:
    """Return the table for a shift by some zero bytes."""
    bits = np.left_shift(np.uint32(1), np.arange(32, dtype=np.uint32))
    if count <= _CALLED:
        return _contributions(np.array([[_register(count, int(bit)) for bit in bits]], np.uint32))
    return _contributions(_shifted(_shifted(bits, count // 2), count - count // 2)[np.newaxis])


def _contributions(bits: Words) -> Words:
    """Return the contribution of each value of each byte of a register, of that of each bit."""
    table = np.zeros((4, len(bits), 256), np.uint32)
    for place in range(4):
        for bit in range(8):
            of_bit = bits[:, 8 * place + bit, np.newaxis]
            table[place, :, 1 << bit : 2 << bit] = table[place, :, : 1 << bit] ^ of_bit
    return table.reshape(4, -1)


def _register(zeros: int, begin: int = _INVERTED) -> int:
    """Return the register after some zero bytes."""
    return int(google_crc32c.extend(begin ^ _INVERTED, bytes(zeros))) ^ _INVERTED
