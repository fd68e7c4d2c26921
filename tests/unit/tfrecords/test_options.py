"""Options of the data source ``tfrecord``: their names, and the values that they can't have."""

import pytest

from tensorflowonspark.errors import SpecError
from tensorflowonspark.tfrecords.options import Options, RecordType


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modifiedAfter": "yesterday"}, "option modifiedAfter='yesterday'.*expected a time such as"),
        (
            {"modifiedBefore": "2026-01-01T00:00:00", "timeZone": "Mars"},
            "timeZone='Mars'.*a zone such as Europe/Berlin",
        ),
        ({"mode": "SLOPPY"}, "option mode='SLOPPY': expected one of FAILFAST, PERMISSIVE, DROPMALFORMED"),
        ({"splitBytes": "many"}, "option splitBytes='many': expected a number of bytes above 0"),
    ],
)
def test_values_that_an_option_can_not_have(options, message):
    with pytest.raises(SpecError, match=message):
        Options.of(options)


@pytest.mark.parametrize("name", ["recordType", "record_type", "recordtype"])
def test_options_have_sparks_names_and_pythons(name):
    assert Options.of({name: "ByteArray"}).record_type is RecordType.BYTE_ARRAY
    with pytest.raises(SpecError, match=f"option {'record_type' if '_' in name else 'recordType'}='Bytes'"):
        Options.of({name: "Bytes"})


@pytest.mark.parametrize(("name", "meant"), [("recrodType", "recordType"), ("recrod_type", "record_type")])
def test_an_unknown_option_is_told_which_was_meant(name, meant):
    with pytest.raises(
        SpecError, match=rf"option {name!r} is unknown \(did you mean {meant!r}\?\); there are .*{meant}"
    ):
        Options.of({name: "ByteArray"})
