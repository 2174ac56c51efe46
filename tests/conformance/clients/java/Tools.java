import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;

import org.apache.kafka.common.utils.Exit;

/**
 * Runs Apache Kafka's command-line tools one after another in one JVM, whose start costs more than any of them.
 *
 * A line of input is the class of a tool and its arguments, joined by tabs. A line of output is the exit code, a tab,
 * and in base64 what the tool has printed.
 */
public final class Tools {
    /** Ends a tool. Some catch it and exit once more: only the first exit counts, and what was printed before. */
    private static final class Exited extends RuntimeException {
    }

    private static final ByteArrayOutputStream PRINTED = new ByteArrayOutputStream();
    private static Integer exitCode;
    private static byte[] printed;

    private static void exit(int code) {
        if (exitCode == null) {
            exitCode = code;
            printed = PRINTED.toByteArray();
        }
        throw new Exited();
    }

    private static void run(String[] words) throws Exception {
        PRINTED.reset();
        exitCode = null;
        int code = 0;
        try {
            String[] arguments = Arrays.copyOfRange(words, 1, words.length);
            Class.forName(words[0]).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException error) {
            if (exitCode == null) {
                error.getCause().printStackTrace();
                code = -1;
            }
        }
        if (exitCode == null) {
            exitCode = code;
            printed = PRINTED.toByteArray();
        }
    }

    public static void main(String[] arguments) throws Exception {
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        PrintStream output = System.out;
        PrintStream stream = new PrintStream(PRINTED, true, StandardCharsets.UTF_8);
        System.setOut(stream);
        System.setErr(stream);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            run(line.split("\t"));
            output.println(exitCode + "\t" + Base64.getEncoder().encodeToString(printed));
            output.flush();
        }
    }
}
