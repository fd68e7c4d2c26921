"""Real Spark in three shapes behind one fixture, and the servers that tests need."""

import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from contextlib import ExitStack

import cloudpickle
import hypothesis
import pytest
from pyspark import cloudpickle as spark_cloudpickle

import tests
from tensorflowonspark import storage
from tests.support import hadoop, jvm, ladder
from tests.support.connect import connect_server
from tests.support.mlflow_server import environment as mlflow_environment
from tests.support.mlflow_server import tracking_server
from tests.support.paths import SUPPORT
from tests.support.processes import check_nothing_left, ended, fork_servers, scratch_directories
from tests.support.standalone import standalone_cluster

os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["TFOS_TEST_RUN"] = uuid.uuid4().hex  # inherited by all that this run starts
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

# What nohup and a shell's background ignore would be ignored by the processes that tests send it to.
_DEFAULT = {signal.SIGHUP: signal.SIG_DFL, signal.SIGQUIT: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
for _number, _handler in _DEFAULT.items():
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _handler)

_OF_CONNECT = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE")  # set by the builder of a remote session
MASTERS = ["local", "local-cluster", "standalone"]
S3_KEYS = {"fs.s3a.access.key": "one", "fs.s3a.secret.key": "two", "fs.s3a.path.style.access": "true"}

# On a busy machine drawing and running examples takes longer than hypothesis allows by itself.
hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("busy")

# The nodes can't import the tests: what these ship to them goes by value.
for _pickler in (cloudpickle, spark_cloudpickle):
    _pickler.register_pickle_by_value(tests)


def pytest_generate_tests(metafunc):
    if "spark" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("masters")
        masters = marker.args if marker else MASTERS
        if (wanted := os.environ.get("TFOS_TEST_MASTERS")) == "connect":  # also tests that do not ask for it
            masters = [wanted] if {wanted, "local"} & set(masters) else []
        elif wanted:
            masters = [master for master in masters if master in wanted.split(",")]
        metafunc.parametrize("spark", masters, indirect=True, scope="session")


pytest_xdist_auto_num_workers = ladder.pytest_xdist_auto_num_workers  # is called before plugins are registered


def pytest_addoption(parser):
    parser.addoption("--write-keras-table", action="store_true", help="write docs/keras.md from what the cells give")
    parser.addoption("--write-durations", action="store_true", help="write tests/durations.json")


def pytest_configure(config):
    ladder.configure(config)
    if not hasattr(config, "workerinput"):  # of pytest-xdist, which inherits them
        jvm.use_options()


@pytest.fixture(scope="session")
def spark(request):
    """A session with four slots in the driver's process, two in one executor, or two executors with one each.

    The two executors are on two addresses of this machine.
    """
    from pyspark.sql import SparkSession

    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        scratch_directories.append(scratch)
        if request.param == "connect":
            address = stack.enter_context(connect_server(scratch))
            session = SparkSession.builder.remote(address).getOrCreate()
            for name in _OF_CONNECT:  # which every process that a test starts would inherit
                os.environ.pop(name, None)
            yield session
            session.stop()
            return
        if request.param == "standalone":
            hosts = ["127.0.0.1", "127.0.0.2"]
            master = stack.enter_context(standalone_cluster(scratch, cores=[1, 1], hosts=hosts))
        else:
            master = {"local": "local[4]", "local-cluster": "local-cluster[1,2,1024]"}[request.param]
        builder = SparkSession.builder
        if request.param == "local":  # on which are the tests of models in Spark's workers
            builder = builder.config("spark.python.daemon.module", "preloading_daemon")
            builder = builder.config("spark.executorEnv.PYTHONPATH", str(SUPPORT / "spark_workers"))
        session = (
            builder.master(master)
            .appName(f"tests on {request.param}")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.executor.cores", "1" if request.param == "standalone" else "2")
            .config("spark.executor.memory", "1g")
            .config("spark.decommission.enabled", "true")
            .config("spark.executor.extraJavaOptions", jvm.executor_options())
            .config("spark.local.dir", scratch)
            .config("spark.sql.shuffle.partitions", "2")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        yield session
        check_nothing_left(f"tests on {request.param}")
        session.stop()
        servers = ended(fork_servers)
        assert not servers, f"these outlive their application: {servers}"


@pytest.fixture(autouse=True)
def _spark_connect(request, monkeypatch):
    """Have PySpark's functions be those of Spark Connect in tests of a session of it, and in no other."""
    if getattr(request.node, "callspec", None) and request.node.callspec.params.get("spark") == "connect":
        monkeypatch.setenv(_OF_CONNECT[0], "1")


def _needs(problem):
    if problem:
        ladder.skip(problem)


@pytest.fixture(scope="session")
def mini_cluster():
    """Hadoop's, with HDFS; it has YARN as well once a test has asked for it."""
    _needs(hadoop.what_is_missing())
    try:
        hadoop.fetch_jars()
    except subprocess.SubprocessError as error:
        _needs(f"Maven could not fetch Hadoop's mini cluster: {error}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        cluster = hadoop.MiniCluster(directory)
        yield cluster
        cluster.close()


@pytest.fixture
def secure_hdfs(hadoop_free, monkeypatch):
    """An HDFS with Kerberos, which this process reaches with its user's key."""
    _needs(hadoop.what_is_missing_for_kerberos())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        try:
            secure = hadoop.SecureHdfs(directory)
        except subprocess.SubprocessError as error:
            _needs(f"Maven could not fetch Hadoop's jars: {error}")
        monkeypatch.setenv("KRB5_CONFIG", secure.krb5_conf)
        monkeypatch.setenv("KRB5_CLIENT_KTNAME", secure.keytab)
        monkeypatch.setenv("KRB5CCNAME", f"FILE:{directory}/tickets")
        storage.use(secure.settings)
        yield secure
        secure.close()


@pytest.fixture(scope="session")
def hdfs(mini_cluster):
    """The URL of a name node."""
    return mini_cluster.url


@pytest.fixture
def hadoop_free():
    """See to it that a test's Hadoop settings are its own."""
    storage.use({})
    yield
    storage.use({})


@pytest.fixture
def unchecked_frames(monkeypatch):
    """Let a cluster be fed whatever its backend takes in place of a DataFrame."""
    monkeypatch.setattr("tensorflowonspark.driver.feed.feed_settings.check_frame", lambda frame, validation: None)


@pytest.fixture(scope="session")
def s3():
    """The address of an S3 with a bucket named ``bucket``."""
    try:
        from moto.server import ThreadedMotoServer
    except ImportError:
        _needs("the S3 server is missing: pip install tensorflowonspark[test]")
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    urllib.request.urlopen(urllib.request.Request(f"{address}/bucket", method="PUT")).close()
    yield address
    server.stop()


@pytest.fixture
def bucket(s3, hadoop_free, monkeypatch):
    """The settings with which the S3 is reached, and only with them."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return {**S3_KEYS, "fs.s3a.endpoint": s3}


@pytest.fixture(params=[pytest.param("hdfs", marks=pytest.mark.slow), "s3a"])
def remote_directory(request, spark, hadoop_free):
    """A directory that only the session's settings lead to."""
    name = {"hdfs": "hdfs", "s3a": "bucket"}[request.param]
    found = request.getfixturevalue(name)
    settings, place = ({}, f"{found}/records") if name == "hdfs" else (found, "s3a://bucket/records")
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield place
    storage.use(settings)
    storage.remove(place)
    for key in settings:
        spark.conf.unset(key)


@pytest.fixture(scope="session")
def mlflow_server():
    """The address of MLflow's own server, on a SQLite store."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        server = tracking_server(directory)
        yield server.uri
        server.close()


@pytest.fixture
def mlflow(mlflow_server, monkeypatch):
    """MLflow with a server, and without a run."""
    for name, value in mlflow_environment.items():
        monkeypatch.setenv(name, value)
    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(mlflow_server)
    yield mlflow
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(before)


@pytest.fixture(autouse=True, scope="session")
def nothing_left_at_the_end():
    """Fail the last test of a process that has left something behind."""
    yield
    check_nothing_left("this process")
