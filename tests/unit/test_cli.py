"""The command line, without a cluster."""

import re

import pytest

from tensorflowonspark.cli import main
from tensorflowonspark.cli.applications import application_of
from tensorflowonspark.cli.run import _pair


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("MASTER", "SPARK_CONF_DIR", "SPARK_HOME", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "train.py").write_text("import sys\n")
    return "train.py"


def shown(capsys):
    return dict(re.split(r"  +", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())


def test_a_dry_run_shows_what_would_run(script, capsys):
    options = ["--workers", "2", "--chief", "--conf", "spark.app.name=b", "--executor-memory", "2g", "--dry-run"]
    assert main(["run", *options, script, "--workers", "7", "-x"]) == 0
    lines = shown(capsys)
    assert lines["script"] == "train.py --workers 7 -x"  # what follows the script is its own
    assert lines["nodes"] == "chief, 2 workers"
    assert "--master 'local[3]'" in lines["Spark"]
    assert "--executor-memory 2g" in lines["Spark"]
    assert lines["Spark"].endswith("--conf spark.app.name=b")


def test_a_dry_run_shows_no_secret(script, capsys, monkeypatch):
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.hadoop.fs.s3a.access.key=AAA pyspark-shell")
    settings = ["spark.hadoop.fs.s3a.secret.key=hidden'\"it", "spark.sql.catalog.x.login=BBB", "spark.task.cpus=2"]
    options = [word for setting in settings for word in ("--conf", setting)]
    assert main(["run", "--dry-run", *options, script, "--password", "CCC", "--db=postgresql://u:DDD@db/x"]) == 0
    text = capsys.readouterr().out
    assert not [each for each in ("AAA", "hidden", "it'", "BBB", "CCC", "DDD") if each in text]
    assert "'spark.sql.catalog.x.login=<redacted>' --conf spark.task.cpus=2" in text
    assert "--password '<redacted>' '--db=postgresql://<redacted>@db/x'" in text


def test_a_variable_without_a_value_has_that_of_the_environment(monkeypatch):
    """`ps` shows the words of a command line to all users of a host."""
    monkeypatch.setenv("API_TOKEN", "sesame=1")
    assert [_pair(each) for each in ("API_TOKEN", "API_TOKEN=", "A=b=c")] == [
        ("API_TOKEN", "sesame=1"),
        ("API_TOKEN", ""),
        ("A", "b=c"),
    ]


@pytest.mark.parametrize(
    ("words", "shown_as"),
    [
        (["train.py", "--", "-x"], "train.py -- -x"),
        (["train.py", "--dry-run", "-h"], "train.py --dry-run -h"),
        (["-m", "json.tool", "-m"], "-m json.tool -m"),
        (["-mjson.tool", "--workers"], "-m json.tool --workers"),
        (["--dashboard", "train.py", "-x"], "train.py -x"),  # no port
        (["--dashboard=8080", "train.py", "-x"], "train.py -x"),
    ],
)
def test_what_follows_the_script_is_its_own(script, capsys, words, shown_as):
    assert main(["run", "--env", "A=1", "--log-level", "10", "--dry-run", *words]) == 0
    assert shown(capsys)["script"] == shown_as


def test_arguments_of_spark_in_the_environment_come_first(script, capsys, monkeypatch):
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master=yarn --conf 'spark.yarn.queue=b c' pyspark-shell")
    assert main(["run", "--dry-run", "--conf", "spark.a=d", script]) == 0
    assert shown(capsys)["Spark"].startswith("--master=yarn --conf 'spark.yarn.queue=b c' --name train.py")


def test_the_python_of_the_executors_is_shown(script, capsys, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/one/python")
    assert main(["run", "--dry-run", script]) == 0
    assert shown(capsys)["Python"] == "/one/python"
    assert main(["run", "--dry-run", "--conf", "spark.pyspark.python=/two/python", script]) == 0
    assert shown(capsys)["Python"] == "/two/python"


def test_spark_connect_has_no_driver_here(script, capsys, monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    assert main(["run", script]) == 2
    assert "SPARK_REMOTE=sc://host: this command starts a driver of its own" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["--master", "--conf", "-c", "MASTER", "file", "properties"])
def test_a_master_that_spark_knows_is_kept(script, capsys, monkeypatch, tmp_path, place):
    options = {"--master": ["yarn"], "--conf": ["spark.master=yarn"], "-c": ["spark.master=yarn"]}.get(place)
    options = [place, *options] if options else []
    if place == "MASTER":
        monkeypatch.setenv("MASTER", "yarn")
    if place == "file":
        (tmp_path / "spark-defaults.conf").write_text("# ours\nspark.master   yarn\n")
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    if place == "properties":
        (tmp_path / "my.conf").write_text("spark.master=yarn\n")
        options = ["--properties-file", "my.conf"]
    assert main(["run", *options, "--dry-run", script]) == 0
    assert "local[" not in shown(capsys)["Spark"]


def test_options_of_spark_submit_are_passed_on(script, capsys):
    options = "--total-executor-cores 8 --driver-cores 2 --keytab k.tab --principal ann@X --proxy-user bob --verbose"
    options += " --repositories https://here -c spark.a=b --conf spark.c=d"
    assert main(["run", *options.split(), "--dry-run", script]) == 0
    words = shown(capsys)["Spark"].split()  # in which values may be secret
    names = [word for word in options.replace("-c ", "--conf ").split() if word.startswith("--")]
    assert set(names) <= set(words)
    assert words.count("--conf") == 2 + len([word for word in names if word == "--conf"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--wrokers", "2", "train.py"], r"unrecognized arguments: --wrokers .*did you mean '--workers'\?"),
        (["--num-proc", "2", "train.py"], r"unrecognized arguments: --num-proc .*here it is '--workers'\)"),
        (["--max-failures=3", "train.py"], r"unrecognized arguments: --max-failures=3 .*here it is '--restarts'\)"),
        (["--epochs", "3", "train.py"], r"--epochs; if --epochs is the script's own, it stands after it: SCRIPT --epo"),
        (
            ["--workers", "two", "train.py"],
            r"argument --workers: 'two': expected a number, or the fewest",
        ),
        (["--env", "TFOS_NONE", "train.py"], r"argument --env: 'TFOS_NONE' is not set here: expected NAME=VALUE, or"),
        (["--env", "=A", "train.py"], r"argument --env: '=A': expected NAME=VALUE"),
        (["--grace", "soon", "train.py"], r"argument --grace: 'soon': expected a time, as 30s or 2m"),
        ([], "the following arguments are required: SCRIPT"),
    ],
)
def test_wrong_usage_is_named(script, capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(["run", *arguments])
    assert ended.value.code == 2
    assert re.search(message, capsys.readouterr().err, re.DOTALL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian.py"], "there is no script trian.py; in that directory there are train.py"),
        (["--dashboard", "8080", "train.py"], "which there is not: the port is --dashboard=8080"),
        (["--master", "sprk://host:7077", "train.py"], "--master sprk://host:7077: expected local[N], spark://HOST"),
        (["--master", "localhost:7077", "train.py"], "--master localhost:7077: expected local[N]"),
        (["--log-dir", "train.py/logs", "train.py"], "--log-dir 'train.py/logs' can't be written to"),
        (["--report", ".", "train.py"], "--report '.' is a directory: name a file in it, as in ./run.html"),
        (["--workers", "0", "train.py"], "--workers 0 without a chief"),
        (["--properties-file", "missing.conf", "train.py"], "--properties-file missing.conf: No such file"),
        (["--deploy-mode", "cluster", "train.py"], "--deploy-mode cluster needs --master yarn or k8s://URL"),
        (
            ["--deploy-mode", "cluster", "--master", "spark://h:1", "train.py"],
            "a standalone cluster runs no Python driver",
        ),
        (["--deploy-mode", "cluster", "--master", "local[2]", "train.py"], "one machine has no cluster mode"),
        (
            ["--deploy-mode", "cluster", "--master", "yarn", "--log-dir", "logs", "train.py"],
            "--log-dir logs is on the driver's machine, which --deploy-mode cluster chooses: name a URL",
        ),
        (
            ["--deploy-mode", "cluster", "--master", "yarn", "--report", "run.html", "train.py"],
            "--report run.html is on the driver's machine, which --deploy-mode cluster chooses: name a URL",
        ),
        (["--start", "first_rows", "train.py"], "--start is about the rows of --data: name those too, or leave it out"),
        (["--validation", "flag", "train.py"], "--validation is about the rows of --data"),
        (["--cache", "none", "train.py"], "--cache is about the rows of --data"),
        (
            ["--restarts", "2", "--restart-causes", "boom", "train.py"],
            "--restart-causes 'boom' is unknown; expected some of",
        ),
        (["--no-wait", "train.py"], "--no-wait needs --deploy-mode cluster"),
        (["--staging-dir", "/tmp", "train.py"], "--staging-dir needs --deploy-mode cluster"),
        (["--dry-run", "--gpus-per-node", "0", "train.py"], "--gpus-per-node 0: expected a whole number of GPUs"),
        (["--dry-run", "--network-interface", "10.1/99", "train.py"], "--network-interface '10.1/99': expected a name"),
        (
            ["--dry-run", "--show", "worker:2", "--workers", "2", "train.py"],
            "--show 'worker:2': expected all, chief, none or",
        ),
    ],
)
def test_an_argument_that_can_not_be_right_is_refused(script, capsys, arguments, message):
    assert main(["run", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("master", ["yarn", "k8s://https://api:6443"])
def test_cluster_mode_needs_a_file_system_that_both_sides_reach(script, capsys, monkeypatch, master):
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    assert main(["run", "--dry-run", "--deploy-mode", "cluster", "--master", master, script]) == 2
    assert "--staging-dir" in capsys.readouterr().err


def test_an_application_on_yarn_keeps_the_tags_that_spark_is_given(script, monkeypatch, tmp_path):
    (tmp_path / "spark-defaults.conf").write_text("spark.master yarn\nspark.yarn.tags  nightly,team-a \n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    option, setting = application_of([]).settings
    assert option == "--conf"
    assert re.fullmatch("spark.yarn.tags=nightly,team-a,tfos-[0-9a-f]{32}", setting)
    assert application_of(["--conf=spark.yarn.tags=b"]).settings[1].startswith("spark.yarn.tags=b,tfos-")
    assert application_of(["--master", "local[2]"]).settings == []


def test_options_that_stand_after_the_script_are_named(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.touch()
    assert main(["run", "--dry-run", str(script), "--workers", "2", "--epochs", "3"]) == 0
    assert f"--workers stands after {script}, so it is the script's own" in capsys.readouterr().err
    assert main(["run", "--dry-run", "--workers", "2", str(script), "--epochs", "3"]) == 0
    assert "stands after" not in capsys.readouterr().err
