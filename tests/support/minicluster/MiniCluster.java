import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * Hadoop's mini cluster as a process: one name node, one data node, and YARN when it is asked for.
 *
 * It answers each line of its standard input, "hdfs" and "yarn", with the address of what it has started, and
 * "applications" with the states of those that YARN has had. It ends with its input, whoever held that.
 */
public class MiniCluster {
  private static MiniYARNCluster yarn;

  public static void main(String[] args) throws Exception {
    File directory = new File(args[0]);
    BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
    Configuration settings = settings();
    String order;
    while ((order = orders.readLine()) != null) {
      // In a thread, so that the input's end is seen even while something starts.
      String wanted = order;
      new Thread(() -> answer(wanted, settings, directory)).start();
    }
    Runtime.getRuntime().halt(0); // an orderly end takes seconds, and nobody needs the files
  }

  private static void answer(String wanted, Configuration settings, File directory) {
    try {
      System.out.println(
          switch (wanted) {
            case "hdfs" -> hdfs(settings, directory);
            case "yarn" -> yarn(settings);
            default -> applications();
          });
      System.out.flush();
    } catch (Throwable error) {
      error.printStackTrace();
      Runtime.getRuntime().halt(1);
    }
  }

  private static String hdfs(Configuration settings, File directory) throws Exception {
    MiniDFSCluster hdfs = new MiniDFSCluster.Builder(settings, directory).numDataNodes(1).build();
    hdfs.waitActive();
    return settings.get("fs.defaultFS"); // the builder has set it
  }

  private static String yarn(Configuration settings) {
    yarn = new MiniYARNCluster("yarn", 1, 1, 1);
    yarn.init(settings);
    yarn.start();
    Configuration known = yarn.getConfig();
    return known.get("yarn.resourcemanager.address") + " " + known.get("yarn.resourcemanager.scheduler.address");
  }

  private static String applications() {
    return yarn.getResourceManager().getRMContext().getRMApps().values().stream()
        .map(each -> each.getApplicationId() + "=" + each.createApplicationState())
        .collect(Collectors.joining(" ", "applications ", ""));
  }

  private static Configuration settings() {
    Configuration settings = new YarnConfiguration();
    settings.set("dfs.replication", "1");
    settings.set("yarn.scheduler.minimum-allocation-mb", "128");
    // The second queue is too small for any container.
    settings.set("yarn.scheduler.capacity.root.queues", "default,full");
    settings.set("yarn.scheduler.capacity.root.default.capacity", "99");
    settings.set("yarn.scheduler.capacity.root.default.maximum-capacity", "100");
    settings.set("yarn.scheduler.capacity.root.full.capacity", "1");
    settings.set("yarn.scheduler.capacity.root.full.maximum-capacity", "1");
    settings.set("yarn.scheduler.capacity.maximum-am-resource-percent", "0.9");
    // The machine that runs the tests may be small, and its disk nearly full.
    settings.set("yarn.minicluster.yarn.nodemanager.resource.memory-mb", "8192");
    settings.set("yarn.nodemanager.vmem-check-enabled", "false");
    settings.set("yarn.nodemanager.pmem-check-enabled", "false");
    settings.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "99.9");
    settings.set("yarn.nodemanager.delete.debug-delay-sec", "0");
    settings.set("yarn.nodemanager.hostname", "127.0.0.1");
    return settings;
  }
}
