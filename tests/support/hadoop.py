"""A real HDFS and a real YARN: Hadoop's own mini cluster, as a process that ends with this one.

Its jars come from Maven, once for a checkout.
"""

from pathlib import Path
from xml.sax.saxutils import escape

from tests.support import jvm, maven
from tests.support.paths import SUPPORT

_PROGRAM = SUPPORT / "minicluster" / "MiniCluster.java"
_JARS = "hadoop-jars"
_SECURE = SUPPORT / "securehdfs" / "SecureHdfs.java"
_KERBEROS_JARS = "kerberos-jars"


def what_is_missing():
    """Return what a mini cluster needs and this machine has not, for the user to install; empty if all is there."""
    return maven.what_is_missing(_JARS)


def what_is_missing_for_kerberos():
    """Return the same for an HDFS with Kerberos."""
    return what_is_missing() or maven.what_is_missing(_KERBEROS_JARS)


def fetch_jars():
    """Return the folder with the jars; Maven copies them there if no earlier run has."""
    return maven.fetch_jars(_JARS, _PROGRAM.with_name("pom.xml"))


class MiniCluster:
    """One name node and one data node, and YARN once it is asked for.

    Parameters
    ----------
    directory : str
        Where it keeps all of its files.
    """

    def __init__(self, directory):
        self._directory = Path(directory)
        options = ["-Xmx1g", *jvm.SOONER.split(), "--add-opens", "java.base/java.lang=ALL-UNNAMED"]
        options.append(f"-Djava.io.tmpdir={directory}")  # Jetty unpacks its pages there, and leaves them
        command = [maven.java(), *options, "-cp", f"{fetch_jars()}/*", str(_PROGRAM), f"{directory}/dfs"]
        # YARN puts its files where it is started.
        self._program = maven.Answering(command, self._directory / "minicluster.log", directory)
        self.process = self._program.process
        self._yarn_folder = None
        self.url = self._program.ask("hdfs")

    def yarn(self):
        """Start YARN if it does not run yet; return the folder for HADOOP_CONF_DIR."""
        if self._yarn_folder is None:
            manager, scheduler = self._program.ask("yarn").split()
            folder = self._directory / "conf"
            folder.mkdir()
            write_settings(folder / "core-site.xml", {"fs.defaultFS": self.url, "dfs.replication": "1"})
            addresses = {"address": manager, "scheduler.address": scheduler}
            write_settings(
                folder / "yarn-site.xml",
                {f"yarn.resourcemanager.{name}": value for name, value in addresses.items()},
            )
            self._yarn_folder = str(folder)
        return self._yarn_folder

    def applications(self):
        """Return the states of all applications that YARN has had, by their ids."""
        return dict(each.split("=") for each in self._program.ask("applications").split()[1:])

    def log(self, application):
        """Return the output of the application's containers, as ``yarn logs`` does."""
        files = sorted(self._directory.glob(f"target/**/{application}/container_*/std*"))
        return "".join(each.read_text(errors="replace") for each in files)

    def close(self):
        """End it."""
        self._program.close()


class SecureHdfs:
    """An HDFS with Kerberos, whose only user is ann.

    Parameters
    ----------
    directory : str
        Where it keeps all of its files.

    Attributes
    ----------
    url : str
        The name node.
    krb5_conf, keytab, token : str
        The paths of Kerberos' settings, of ann's key, and of a delegation token.
    settings : dict of str to str
        Hadoop's settings for clients.
    """

    def __init__(self, directory):
        own = maven.fetch_jars(_KERBEROS_JARS, _SECURE.with_name("pom.xml"))
        options = ["-Xmx512m", *jvm.SOONER.split(), "--add-opens", "java.base/java.lang=ALL-UNNAMED"]
        options += ["--add-opens", "java.security.jgss/sun.security.krb5=ALL-UNNAMED", f"-Djava.io.tmpdir={directory}"]
        command = [maven.java(), *options, "-cp", f"{fetch_jars()}/*:{own}/*", str(_SECURE), directory]
        self._program = maven.Answering(command, Path(directory, "securehdfs.log"), directory)
        self.url, self.krb5_conf = self._program.answer("hdfs").split()
        self.keytab, self.token = f"{directory}/ann.keytab", f"{directory}/token"
        self.settings = {
            "hadoop.security.authentication": "kerberos",
            "dfs.namenode.kerberos.principal": "hdfs/localhost@EXAMPLE.COM",
            "dfs.data.transfer.protection": "privacy",
        }

    def close(self):
        """End it."""
        self._program.close()


def write_settings(path, settings):
    """Write Hadoop's XML."""
    properties = "".join(
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in settings.items()
    )
    Path(path).write_text(f'<?xml version="1.0"?>\n<configuration>\n{properties}</configuration>\n')
