"""What texts, settings and command lines may show."""

import shlex
import time

import pytest

from tensorflowonspark.cli.redaction import Redaction
from tensorflowonspark.secrecy import is_secret, shown_value, shown_words, without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:p@ss@h/x", "postgresql://<redacted>@h/x"),
        ("amqp://u:p/w@h/x", "amqp://<redacted>@h/x"),
        ("hdfs://h:8020/a@b https://h/x?v=1", "hdfs://h:8020/a@b https://h/x?v=1"),
        ("jdbc:oracle:thin:u/p@//h:1521/x", "jdbc:oracle:thin:<redacted>@//h:1521/x"),
        ("jdbc:oracle:thin:@//h:1521/x", "jdbc:oracle:thin:@//h:1521/x"),
        ("jdbc:sqlserver://h;user=u;password=p;x=y", "jdbc:sqlserver://h;user=u;password=<redacted>"),
        ("http://h/?token=abc&x=1", "http://h/?token=<redacted>&x=1"),
        ("password=a\\ b c", "password=<redacted> c"),
        ('"password": "a\\"b", "x": 1', '"password": "<redacted>", "x": 1'),
        ("'password=a'\"'\"'b' c", "'password=<redacted>' c"),
        ("{'api_key': 'a', 'tokenizer': 'b'}", "{'api_key': '<redacted>', 'tokenizer': 'b'}"),
        ("-Dour.thing=abc -Dx=8 -Duser.timezone=UTC", "-Dour.thing=<redacted> -Dx=8 -Duser.timezone=UTC"),
        ("spark.our.thing=abc spark.master: yarn", "spark.our.thing=<redacted> spark.master: yarn"),
        ("key AKIAABCDEFGHIJKLMNOP, x", "key <redacted>, x"),
        ("ghp_" + 36 * "a" + " eyJhbGciOiJIUzI1NiJ9.eyJ4Ijox.abc", "<redacted> <redacted>"),
        ("KeyError: 'a' in the keys: b", "KeyError: 'a' in the keys: b"),
        ("Authorization: Token abc", "Authorization: <redacted> <redacted>"),
        ("with Token 9944b09199c62bcf, no token of ours", "with Token <redacted> no token of ours"),
        ("glpat-" + 20 * "x" + " AIza" + 35 * "y", "<redacted> <redacted>"),
        ("psql jane:pw@db.example.org, at 12:30", "psql <redacted>@db.example.org, at 12:30"),
        ("image spark:4.0@sha256:0123 of h:8020/a@b", "image spark:4.0@sha256:0123 of h:8020/a@b"),
        ("sshpass -p pw ssh -p 22 h", "sshpass -p <redacted> ssh -p 22 h"),
    ],
)
def test_texts(text, shown):
    assert without_secrets(text) == shown


@pytest.mark.deep
@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "part",
    ["a=", "token=", "token='", "://a:", "jdbc:a:b:c", "password ", "-Da=b ", 'x="', "eyJa.", "-eyJaaaaaaaaaa", "a",
     "a@", "spark.app.name=", "spark.a.", "-----BEGIN PRIVATE KEY", "glpat-", "AIza", "Token ", "-p ", "a:b", "x.y@z."],
)  # fmt: skip
def test_a_long_text_takes_no_square_of_its_length(part):
    text = part * (60_000 // len(part))
    began = time.process_time()
    without_secrets(text)
    Redaction(home="/home/x").text(text)
    assert time.process_time() - began < 3
    without_secrets(f"{part} " * 10_000)


@pytest.mark.parametrize("value", ["a'b", 'a"b c', "a b'c\"d", "a\\'b c"])
def test_a_quoted_value_is_hidden_to_its_end(value):
    words = ["--conf", f"spark.x.login={value}"]
    assert shown_words(words) == ["--conf", "spark.x.login=<redacted>"]
    assert shown_words([f"--conf={words[1]}"]) == ["--conf=spark.x.login=<redacted>"]
    text = without_secrets(shlex.join([*words, "--name", "x"]))
    assert text.endswith(" --name x")
    assert not set("abcd") & set(text.partition("login")[2].partition(" --name")[0].replace("<redacted>", ""))


def test_values_of_unknown_names_are_hidden_unless_they_are_plain():
    for name in ("spark.sql.catalog.c.uri", "spark.hadoop.fs.ftp.user.h", "spark.executorEnv.OURS", "OURS"):
        assert [shown_value(name, each) for each in ("abc", "0123456789abcdef")] == 2 * ["<redacted>"]
        assert all(shown_value(name, each) == each for each in ("true", "8", "0.5", "512m", "30s"))
    assert shown_value("spark.ssl.key-store.pin", "1234") == "<redacted>"
    assert all(map(is_secret, ["OURS_KEY", "GH_PAT", "pw"]))
    assert not any(map(is_secret, ["rate", "keys", "key_column", "key_dim"]))
