import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.Readable;

/**
 * Reads lines "class version json", writes lines of hex: what Kafka's own classes make of those values. A line "class
 * version hex:bytes" has them decode the bytes, and encode again what they found.
 */
public class Golden {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ", 3);
            short version = Short.parseShort(parts[1]);
            String answer;
            try {
                Message message;
                if (parts[2].startsWith("hex:")) {
                    ByteBuffer given = ByteBuffer.wrap(HexFormat.of().parseHex(parts[2].substring(4)));
                    message = (Message) Class.forName(parts[0]).getConstructor(Readable.class, short.class)
                        .newInstance(new ByteBufferAccessor(given), version);
                } else {
                    Method read =
                        Class.forName(parts[0] + "JsonConverter").getMethod("read", JsonNode.class, short.class);
                    message = (Message) read.invoke(null, mapper.readTree(parts[2]), version);
                }
                ByteBufferAccessor bytes = MessageUtil.toByteBufferAccessor(message, version);
                ByteBuffer buffer = bytes.buffer();
                byte[] copy = new byte[buffer.remaining()];
                buffer.get(copy);
                answer = HexFormat.of().formatHex(copy);
            } catch (ReflectiveOperationException error) {
                answer = "error " + String.valueOf(error.getCause() == null ? error : error.getCause()).replace('\n', ' ');
            }
            System.out.println(answer);
        }
    }
}
