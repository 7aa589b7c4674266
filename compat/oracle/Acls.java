import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Kafka's StandardAuthorizer over standard input and output, one case a line: super users, the default, ACLs and
 * questions; test_acls.py has the format. The answer has a digit for each question: 1 for allowed, 0 for denied, 2 for
 * an exception.
 */
public class Acls {
    private static final Metrics METRICS = new Metrics();
    private static int cases = 0;

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) System.out.println(answer(line));
    }

    private static String answer(String line) throws Exception {
        String[] parts = line.split("\\|", -1);
        StandardAuthorizer authorizer = new StandardAuthorizer();
        authorizer.withPluginMetrics(new PluginMetricsImpl(METRICS, Map.of("case", Integer.toString(cases++))));
        authorizer.configure(Map.of(
            "super.users", parts[0], "allow.everyone.if.no.acl.found", parts[1], "node.id", "1"));
        Map<Uuid, StandardAcl> acls = new HashMap<>();
        for (String text : split(parts[2])) {
            String[] of = text.split(",", -1);
            acls.put(Uuid.randomUuid(), new StandardAcl(
                ResourceType.fromCode(Byte.parseByte(of[0])), of[1], PatternType.fromCode(Byte.parseByte(of[2])), of[3],
                of[4], AclOperation.fromCode(Byte.parseByte(of[5])), AclPermissionType.fromCode(Byte.parseByte(of[6]))));
        }
        authorizer.loadSnapshot(acls);
        authorizer.completeInitialLoad();
        StringBuilder answers = new StringBuilder();
        for (String text : split(parts[3])) {
            String[] of = text.split(",", -1);
            AuthorizableRequestContext context = new Client(of[0], of[1]);
            AclOperation operation = AclOperation.fromCode(Byte.parseByte(of[2]));
            ResourceType type = ResourceType.fromCode(Byte.parseByte(of[3]));
            AuthorizationResult result;
            try {
                if (of[4].isEmpty()) {
                    result = authorizer.authorizeByResourceType(context, operation, type);
                } else {
                    ResourcePattern resource = new ResourcePattern(type, of[4], PatternType.LITERAL);
                    result = authorizer.authorize(context, List.of(new Action(operation, resource, 1, false, false))).get(0);
                }
                answers.append(result == AuthorizationResult.ALLOWED ? '1' : '0');
            } catch (RuntimeException error) {
                answers.append('2');
            }
        }
        return answers.toString();
    }

    private static List<String> split(String text) {
        return text.isEmpty() ? new ArrayList<>() : List.of(text.split(";"));
    }

    private static class Client implements AuthorizableRequestContext {
        private final KafkaPrincipal principal;
        private final InetAddress address;

        Client(String principal, String address) throws Exception {
            this.principal = new KafkaPrincipal(principal.split(":")[0], principal.split(":")[1]);
            this.address = InetAddress.getByName(address);
        }

        public String listenerName() { return "PLAINTEXT"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.PLAINTEXT; }
        public KafkaPrincipal principal() { return principal; }
        public InetAddress clientAddress() { return address; }
        public int requestType() { return 0; }
        public int requestVersion() { return 0; }
        public String clientId() { return "client"; }
        public int correlationId() { return 0; }
    }
}
