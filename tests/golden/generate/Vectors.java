// Writes golden vectors with Apache Kafka's own generated classes: one line of JSON per vector on stdout.
//
//   java -cp '<jars>/*' Vectors.java <seed> <variants> < names-of-classes
//
// Each message is filled by its schema of each version with seeded values, then turned into JSON by Kafka's
// converter and into bytes by Kafka's serializer. Variant 0 is the message as its constructor leaves it.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.ParameterizedType;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Map;
import java.util.Random;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;
import org.apache.kafka.common.record.internal.MemoryRecords;

public class Vectors {
    static final String[] WORDS = {"", "a", "topic-1", "größe", "日本", "x".repeat(130), "😀"};
    static final ObjectMapper MAPPER = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        long seed = Long.parseLong(args[0]);
        int variants = Integer.parseInt(args[1]);
        BufferedReader names = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String name = names.readLine(); name != null; name = names.readLine()) {
            Class<?> type = Class.forName(name);
            Schema[] schemas = (Schema[]) type.getField("SCHEMAS").get(null);
            Message blank = (Message) type.getConstructor().newInstance();
            for (short v = blank.lowestSupportedVersion(); v <= blank.highestSupportedVersion(); v++)
                for (int variant = 0; variant < variants; variant++)
                    out.append(vector(type, schemas[v], v, variant, seed)).append('\n');
        }
        System.out.print(out);
    }

    static String vector(Class<?> type, Schema schema, short version, int variant, long seed) throws Exception {
        Random random = new Random(seed + type.getName().hashCode() * 1009L + version * 31L + variant);
        Message message = (Message) (variant == 0 ? type.getConstructor().newInstance() : fill(type, schema, random));
        JsonNode json = (JsonNode) Class.forName(type.getName() + "JsonConverter")
            .getMethod("write", type, short.class).invoke(null, message, version);
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(buffer), cache, version);
        StringBuilder hex = new StringBuilder();
        for (byte b : buffer.array()) hex.append(String.format("%02x", b));
        ObjectNode line = MAPPER.createObjectNode();
        line.put("message", type.getSimpleName());
        line.put("version", version);
        line.set("json", json);
        line.put("hex", hex.toString());
        return MAPPER.writeValueAsString(line);
    }

    static Object fill(Class<?> type, Schema schema, Random random) throws Exception {
        Object message = type.getConstructor().newInstance();
        for (BoundField bound : schema.fields()) {
            if (bound.def.type instanceof TaggedFields) {
                for (var tagged : ((TaggedFields) bound.def.type).fields().values())
                    if (random.nextInt(3) > 0) set(message, tagged.name, tagged.type, random);
            } else {
                set(message, bound.def.name, bound.def.type, random);
            }
        }
        return message;
    }

    static void set(Object message, String name, Type type, Random random) throws Exception {
        for (var field : message.getClass().getDeclaredFields()) {
            if (!field.getName().equalsIgnoreCase(name.replace("_", ""))) continue;
            field.setAccessible(true);
            Object value = value(field.getType(), field.getGenericType(), type, random);
            if (value == null && field.getType().isPrimitive()) throw new IllegalStateException(name);
            field.set(message, value);
            return;
        }
        throw new IllegalStateException(message.getClass() + " has no field " + name);
    }

    @SuppressWarnings("unchecked")
    static Object value(Class<?> java, java.lang.reflect.Type generic, Type type, Random random) throws Exception {
        if (type.isNullable() && random.nextInt(4) == 0) return null;
        if (Collection.class.isAssignableFrom(java)) {
            Type element = type.arrayElementType().get();
            boolean isList = java.isInterface();
            java.lang.reflect.Type of = isList
                ? ((ParameterizedType) generic).getActualTypeArguments()[0]
                : ((ParameterizedType) java.getGenericSuperclass()).getActualTypeArguments()[0];
            Collection<Object> values =
                isList ? new ArrayList<>() : (Collection<Object>) java.getConstructor(int.class).newInstance(4);
            for (int n = random.nextInt(4); n > 0; n--) values.add(value((Class<?>) of, of, element, random));
            return values;
        }
        if (type instanceof Schema) return fill(java, (Schema) type, random);
        if (java == boolean.class) return random.nextBoolean();
        if (java == byte.class || java == Byte.class) return (byte) random.nextInt();
        if (java == short.class || java == Short.class) return (short) random.nextInt();
        if (java == int.class || java == Integer.class)
            return type == Type.UINT16 ? random.nextInt(0x10000) : random.nextInt();
        if (java == long.class || java == Long.class)
            return type == Type.UNSIGNED_INT32 ? random.nextInt() & 0xffffffffL : random.nextLong();
        if (java == double.class) return random.nextInt(1000) / 8.0;
        if (java == Uuid.class) return new Uuid(random.nextLong(), random.nextLong());
        if (java == String.class) return WORDS[random.nextInt(WORDS.length)];
        byte[] bytes = new byte[random.nextInt(5) == 0 ? 200 : random.nextInt(6)];
        random.nextBytes(bytes);
        if (java == byte[].class) return bytes;
        if (java == ByteBuffer.class) return ByteBuffer.wrap(bytes);
        return MemoryRecords.readableRecords(ByteBuffer.wrap(bytes));
    }
}
