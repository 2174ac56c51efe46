import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * Reads records as Apache Kafka does and writes them again: one line of NAME VERSION HEX gives one line of HEX JSON.
 * NAME is "metadata" for a metadata record with its frame, or the name of a control record.
 */
public class EncodeAgain {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            byte[] given = words.length < 3 ? new byte[0] : HexFormat.of().parseHex(words[2]);
            System.out.println(words[0].equals("metadata") ? metadata(given) : control(words[0], given, words[1]));
        }
    }

    private static String metadata(byte[] given) throws Exception {
        MetadataRecordSerde serde = new MetadataRecordSerde();
        ApiMessageAndVersion record = serde.read(new ByteBufferAccessor(ByteBuffer.wrap(given)), given.length);
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer out = ByteBuffer.allocate(serde.recordSize(record, cache));
        serde.write(record, cache, new ByteBufferAccessor(out));
        String type = record.message().getClass().getName();
        return HexFormat.of().formatHex(out.array()) + " " + json(type, record.message(), record.version());
    }

    private static String control(String name, byte[] given, String versionText) throws Exception {
        short version = Short.parseShort(versionText);
        String type = "org.apache.kafka.common.message." + name;
        Message message = (Message) Class.forName(type).getDeclaredConstructor().newInstance();
        message.read(new ByteBufferAccessor(ByteBuffer.wrap(given)), version);
        ByteBuffer out = MessageUtil.toByteBufferAccessor(message, version).buffer();
        byte[] bytes = new byte[out.remaining()];
        out.get(bytes);
        return HexFormat.of().formatHex(bytes) + " " + json(type, message, version);
    }

    private static String json(String type, Object message, short version) throws Exception {
        Class<?> converter = Class.forName(type + "JsonConverter");
        return converter.getMethod("write", Class.forName(type), short.class).invoke(null, message, version).toString();
    }
}
