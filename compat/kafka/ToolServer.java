import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs main classes of Kafka one after the other in one JVM; see resident.py.
 *
 * A request is a line of standard input: the main class, the files for standard input, output and error, and the
 * arguments, each in base64, with spaces between them. The first line of standard output is "ready". The answer is a line
 * "ended", with the exit status and "clean" if no thread of the tool is left, else "dirty".
 *
 * As in a JVM of its own, a tool ends when it exits, or when main has returned and all other threads that are no daemons
 * have ended; then its shutdown hooks run. A thread that exits never continues.
 */
public final class ToolServer {
    private static final long GRACE_MS = 300;

    private static volatile InputStream input = InputStream.nullInputStream();
    private static volatile OutputStream output = OutputStream.nullOutputStream();
    private static volatile OutputStream error = OutputStream.nullOutputStream();

    public static void main(String[] unused) throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream answers = System.out;
        // Set once, because Log4j and Scala keep the streams that they find first.
        System.setIn(new InputStream() {
            @Override public int read() throws IOException { return input.read(); }
            @Override public int read(byte[] to, int at, int most) throws IOException { return input.read(to, at, most); }
            @Override public int available() throws IOException { return input.available(); }
        });
        PrintStream out = redirected(false);
        PrintStream err = redirected(true);
        System.setOut(out);
        System.setErr(err);
        answers.println("ready");
        answers.flush();
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            List<String> words = new ArrayList<>();
            for (String word : line.split(" ", -1)) {
                words.add(new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8));
            }
            try (InputStream in = new FileInputStream(words.get(1));
                 OutputStream toOut = new FileOutputStream(words.get(2));
                 OutputStream toErr = new FileOutputStream(words.get(3))) {
                input = in;
                output = toOut;
                error = toErr;
                String answer = new Run(words.get(0), words.subList(4, words.size()).toArray(new String[0])).run();
                out.flush();
                err.flush();
                input = InputStream.nullInputStream();
                output = OutputStream.nullOutputStream();
                error = OutputStream.nullOutputStream();
                answers.println("ended " + answer);
                answers.flush();
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static PrintStream redirected(boolean isError) {
        OutputStream target = new OutputStream() {
            private OutputStream current() { return isError ? error : output; }
            @Override public void write(int one) throws IOException { current().write(one); }
            @Override public void write(byte[] from, int at, int length) throws IOException { current().write(from, at, length); }
        };
        return new PrintStream(target, true, Charset.defaultCharset());
    }

    /** One run of a tool. Its threads are those of a group. */
    private static final class Run {
        private final ThreadGroup group;
        private final CountDownLatch ended = new CountDownLatch(1);
        private final List<Thread> hooks = new ArrayList<>();
        private final List<Thread> exited = new ArrayList<>();
        private final String mainClass;
        private final String[] arguments;
        private Integer status;

        Run(String mainClass, String[] arguments) {
            this.mainClass = mainClass;
            this.arguments = arguments;
            group = new ThreadGroup(mainClass);
        }

        String run() throws InterruptedException {
            Exit.setExitProcedure((code, message) -> exit(code));
            Exit.setHaltProcedure((code, message) -> exit(code));
            Exit.setShutdownHookAdder((name, action) -> {
                synchronized (this) {
                    hooks.add(new Thread(group, action, name == null ? "hook" : name));
                }
            });
            new Thread(group, this::runMain, "main").start();
            ended.await();
            List<Thread> last;
            synchronized (this) {
                last = List.copyOf(hooks);
            }
            for (Thread hook : last) {
                hook.start();
            }
            for (Thread hook : last) {
                hook.join();
            }
            return status + (isClean() ? " clean" : " dirty");
        }

        private void runMain() {
            int code = 0;
            try {
                Class.forName(mainClass).getMethod("main", String[].class).invoke(null, (Object) arguments);
            } catch (InvocationTargetException wrapped) {
                System.err.print("Exception in thread \"main\" ");
                wrapped.getCause().printStackTrace();
                code = 1;
            } catch (ReflectiveOperationException missing) {
                System.err.println("Error: Could not find or load main class " + mainClass);
                System.err.println("Caused by: " + missing);
                code = 1;
            }
            try {
                for (Thread each : threads()) {
                    if (each != Thread.currentThread() && !each.isDaemon()) {
                        each.join();
                    }
                }
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
            end(code);
        }

        private synchronized void end(int code) {
            if (status == null) {
                status = code;
                ended.countDown();
            }
        }

        /** What System.exit does for its caller: it does not return. */
        private void exit(int code) {
            synchronized (this) {
                exited.add(Thread.currentThread());
            }
            end(code);
            while (true) {
                try {
                    new CountDownLatch(1).await();
                } catch (InterruptedException ignored) {
                    // The tool has ended; nothing may wake its thread.
                }
            }
        }

        private List<Thread> threads() {
            Thread[] found = new Thread[group.activeCount() + 16];
            return new ArrayList<>(Arrays.asList(found).subList(0, group.enumerate(found)));
        }

        /** Whether all threads have ended, but for those that called exit. */
        private boolean isClean() throws InterruptedException {
            for (long waited = 0; ; waited += 5) {
                List<Thread> left = threads();
                synchronized (this) {
                    left.removeAll(exited);
                }
                if (left.isEmpty()) {
                    return true;
                }
                if (waited > GRACE_MS) {
                    return false;
                }
                Thread.sleep(5);
            }
        }
    }
}
