import java.io.File;
import java.net.URI;
import java.security.PrivilegedExceptionAction;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.minikdc.MiniKdc;
import org.apache.hadoop.security.Credentials;
import org.apache.hadoop.security.UserGroupInformation;

/**
 * An HDFS with Kerberos as a process: a key distribution center, one name node and one data node.
 *
 * It writes the address of the name node and the path of krb5.conf, and leaves in its directory the keytab of the user
 * ann and a delegation token, as YARN has it in each container. It ends with its input.
 */
public class SecureHdfs {
  public static void main(String[] args) throws Exception {
    File directory = new File(args[0]);
    MiniKdc center = new MiniKdc(MiniKdc.createConf(), new File(directory, "kdc"));
    center.start();
    File servers = new File(directory, "hdfs.keytab");
    File ann = new File(directory, "ann.keytab");
    center.createPrincipal(servers, "hdfs/localhost", "HTTP/localhost");
    center.createPrincipal(ann, "ann");
    Configuration settings = settings(center.getRealm(), servers.getPath());
    UserGroupInformation.setConfiguration(settings);
    MiniDFSCluster hdfs =
        new MiniDFSCluster.Builder(settings, new File(directory, "dfs")).numDataNodes(1).build();
    hdfs.waitActive();
    hdfs.getFileSystem().mkdirs(new Path("/user/ann"));
    hdfs.getFileSystem().setOwner(new Path("/user/ann"), "ann", "ann");
    writeToken(hdfs.getURI(), settings, center.getRealm(), ann.getPath(), directory);
    System.out.println(hdfs.getURI() + " " + center.getKrb5conf());
    System.out.flush();
    while (System.in.read() >= 0) {}
    Runtime.getRuntime().halt(0);
  }

  private static void writeToken(URI hdfs, Configuration settings, String realm, String keytab, File directory)
      throws Exception {
    UserGroupInformation user = UserGroupInformation.loginUserFromKeytabAndReturnUGI("ann@" + realm, keytab);
    PrivilegedExceptionAction<Void> write =
        () -> {
          Credentials found = new Credentials();
          FileSystem.get(hdfs, settings).addDelegationTokens("ann", found);
          found.writeTokenStorageFile(new Path("file://" + directory + "/token"), settings);
          return null;
        };
    user.doAs(write);
  }

  private static Configuration settings(String realm, String keytab) {
    Configuration settings = new HdfsConfiguration();
    settings.set("hadoop.security.authentication", "kerberos");
    for (String each : new String[] {"namenode", "datanode"}) {
      settings.set("dfs." + each + ".kerberos.principal", "hdfs/localhost@" + realm);
      settings.set("dfs." + each + ".keytab.file", keytab);
    }
    settings.set("dfs.web.authentication.kerberos.principal", "HTTP/localhost@" + realm);
    settings.set("dfs.web.authentication.kerberos.keytab", keytab);
    settings.set("dfs.block.access.token.enable", "true");
    settings.set("dfs.data.transfer.protection", "privacy");
    settings.set("dfs.replication", "1");
    // Data nodes need no privileged ports, as their data transfer is protected; their web pages would need certificates.
    settings.set("ignore.secure.ports.for.testing", "true");
    return settings;
  }
}
