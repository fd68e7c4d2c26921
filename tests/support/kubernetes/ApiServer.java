import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.MappingIterator;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.introspect.Annotated;
import com.fasterxml.jackson.databind.introspect.JacksonAnnotationIntrospector;
import com.fasterxml.jackson.dataformat.yaml.YAMLMapper;
import com.fasterxml.jackson.datatype.jsr310.JavaTimeModule;
import io.fabric8.kubernetes.api.model.GenericKubernetesResource;
import io.fabric8.kubernetes.client.server.mock.KubernetesCrudDispatcher;
import io.fabric8.kubernetes.client.server.mock.KubernetesMockServer;
import io.fabric8.kubernetes.client.utils.KubernetesSerialization;
import io.fabric8.kubernetes.client.utils.Serialization;
import io.fabric8.mockwebserver.Context;
import io.fabric8.mockwebserver.MockWebServer;
import io.fabric8.mockwebserver.http.Buffer;
import io.fabric8.mockwebserver.dsl.HttpMethod;
import io.fabric8.mockwebserver.http.MockResponse;
import io.fabric8.mockwebserver.http.RecordedRequest;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Kubernetes' API server as fabric8 mocks it, as a process: it stores objects, and serves them and their changes.
 *
 * Its argument is the address to listen on; it writes its URL. Then it answers each line of its standard input, the path of a YAML file, with "ok" or with what the
 * API's types do not allow in it; and ends with its input.
 */
public class ApiServer {
  public static void main(String[] args) throws Exception {
    KubernetesMockServer server =
        new KubernetesMockServer(
            new Context(Serialization.jsonMapper()), new MockWebServer(), new HashMap<>(), new Pods(), false);
    server.start(InetAddress.getByName(args[0]), 0);
    System.out.println("http://" + args[0] + ":" + server.getPort());
    System.out.flush();
    BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
    String order;
    while ((order = orders.readLine()) != null) {
      System.out.println(check(new File(order)));
      System.out.flush();
    }
    Runtime.getRuntime().halt(0);
  }

  private static String check(File file) {
    try (MappingIterator<JsonNode> documents = new YAMLMapper().readerFor(JsonNode.class).readValues(file)) {
      KubernetesSerialization types = new KubernetesSerialization();
      while (documents.hasNext()) {
        JsonNode document = documents.next();
        String version = document.path("apiVersion").asText();
        String kind = document.path("kind").asText();
        Class<?> type = types.getRegisteredKubernetesResource(version, kind);
        if (type == null) {
          return "no such type: " + version + " " + kind;
        }
        strict().treeToValue(document, type);
      }
      return "ok";
    } catch (Exception error) {
      return String.valueOf(error.getMessage()).replace('\n', ' ');
    }
  }

  /** Returns a mapper that refuses unknown fields, which the types otherwise keep. */
  private static ObjectMapper strict() {
    return new ObjectMapper()
        .registerModule(new JavaTimeModule())
        .enable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES)
        .setAnnotationIntrospector(
            new JacksonAnnotationIntrospector() {
              @Override
              public Boolean hasAnySetter(Annotated member) {
                return false;
              }
            });
  }

  /** What the mock lacks of the real server: a new pod's phase, the kubelet's part in its deletion, and apply. */
  private static class Pods extends KubernetesCrudDispatcher {
    @Override
    public MockResponse dispatch(RecordedRequest request) {
      String sender = String.valueOf(request.getHeader("User-Agent"));
      System.err.println("request of " + sender + ": " + request.getMethod() + " " + request.getPath());
      return super.dispatch(request);
    }

    @Override
    public MockResponse handleCreate(RecordedRequest request) {
      String body = request.getBody().readUtf8();
      if (request.getPath().split("\\?")[0].endsWith("/pods")) {
        GenericKubernetesResource pod = Serialization.unmarshal(body, GenericKubernetesResource.class);
        pod.setAdditionalProperty("status", Map.of("phase", "Pending"));
        pod.getMetadata().setFinalizers(List.of("tests/kubelet"));
        body = Serialization.asJson(pod);
      }
      return super.handleCreate(with(request, HttpMethod.POST, request.getPath(), body));
    }

    @Override
    public MockResponse handlePatch(RecordedRequest request) {
      String type = String.valueOf(request.getHeader("Content-Type"));
      if (!type.startsWith("application/apply-patch")) {
        return super.handlePatch(request);
      }
      String path = request.getPath().split("\\?")[0];
      String body = request.getBody().readUtf8();
      boolean isNew = getKeyed(path) == null;
      String place = isNew ? path.substring(0, path.lastIndexOf('/')) : path;
      RecordedRequest full = with(request, isNew ? HttpMethod.POST : HttpMethod.PUT, place, body);
      return isNew ? handleCreate(full) : handleUpdate(full);
    }

    private Object getKeyed(String path) {
      return findResource(getKey(path));
    }

    private static RecordedRequest with(RecordedRequest request, HttpMethod method, String path, String body) {
      Buffer buffer = new Buffer(body.getBytes(StandardCharsets.UTF_8));
      return new RecordedRequest(request.getHttpVersion(), method, path, request.getHeaders(), buffer);
    }
  }
}
