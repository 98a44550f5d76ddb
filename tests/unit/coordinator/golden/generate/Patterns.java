// Compiles patterns with the RE2/J that Kafka uses and matches each against topic names; prints JSON.
//   java -cp "$HEADRACE_KAFKA_LIBS/*" Patterns.java > ../patterns-re2j-1.8.json
// Handwritten patterns for every construct, then seeded random ones made of pieces that do and do not fit together.

import com.google.re2j.*;
import java.util.*;

public class Patterns {
    static final String[] NAMES = {
        "a", "b", "ab", "abc", "aab", "foo", "foo.bar", "foo-bar", "foo_bar", "FOO", "Foo", "orders", "orders-1",
        "orders.eu.v2", "s", "S", "k", "K", "x1y2", "__consumer_offsets", "9", "-", ".", "_", "aaaaaaaaaaaaaaaaaaaaaaaa",
        "abababab", "a.b", "a-b", "test-topic", "e", "E", "Q", "0123456789", "z.Z"};

    static final String[] PATTERNS = {
        "", "a", "a|b", "a||b", "|", "(", ")", "()", "(a", "a)", "(a|b)c?", "a*", "a+", "a?", "a**", "a*?", "a+?", "a??",
        "a*??", "a{2}", "a{2,}", "a{2,3}", "a{,3}", "a{", "a{1", "a{1,", "a{1,2", "a{x}", "a{01}", "a{1001}", "a{3,2}",
        "a{99999999999}", "a{2}{3}", "a{2}?", "a{2}*", "{", "{1}", "x{*", "a{*", "{*", "*", "+", "?", "|*", "(*)", "^*",
        "^a$", "^^a$$", "a^b", "a$b", "\\Aa\\z", "\\Ab", "a\\Z", "foo.bar", "foo\\.bar", ".*", ".+\\.bar", "[a-c]+", "[^a-c]+", "[]a]", "[^]a]", "[a-]", "[-a]", "[a-b-c]", "[a--]", "[z-a]", "[", "[a", "[]", "[^]", "[\\d]+", "[\\D]+",
        "[\\w.]+", "[[:alpha:]]+", "[[:^alpha:]]+", "[[:foo:]]", "[[:alpha:]", "[[:upper:]]+", "(?i)[[:upper:]]+",
        "(?i)[[:^upper:]]+", "[[:word:]]+", "[[:punct:]]", "[[:xdigit:]]+", "[[:digit:][:lower:]]+", "[:alpha:]+",
        "\\d+", "\\D+", "\\s", "\\S+", "\\w+", "\\W+", "\\pL+", "\\PL+", "\\p{L}+", "\\p{^L}+", "\\P{^L}+", "\\p{Lu}+",
        "(?i)\\p{Lu}+", "\\p{Greek}", "\\P{Greek}+", "\\p{Latin}+", "\\p{Common}+", "\\p{Foo}", "\\p", "\\p{", "\\p{L",
        "\\pX", "\\p{Any}+", "[\\pL]+", "[^\\pL]+", "\\p{Nd}+", "\\p{Po}", "\\p{Pc}+", "\\p{Pd}",
        "(?i)foo", "(?i:foo)", "(?i)f(?-i)oo", "(?i)f(?-i:o)o", "((?i)f)oo", "(?i-s)foo", "(?-)foo", "(?i-)foo", "(?--i)foo",
        "(?x)foo", "(?)foo", "(?:foo)", "(?:foo", "(?", "(?i", "(?=foo)", "(?!foo)", "(?<=foo)", "(?<!foo)", "(?P=foo)",
        "(?P<n>foo)", "(?<n>foo)", "(?P<n>f)(?P<n>oo)", "(?P<>foo)", "(?P<n-m>foo)", "(?P<n", "(?'n'foo)", "(?m)^foo$",
        "(?s).*", "(?U)a+", "(?ims)foo", "(?i)a|FOO", "(?i:a)|FOO", "(a|(?i)b)foo", "(?i)\u017f", "(?i)\u212a", "\u017f",
        "(?i)[\u017f]", "(?i)[\u2000-\u2200]", "(?i)[^k]", "(?i)[^\u212a]", "(?i)\\x{212A}",
        "\\x61", "\\x{61}", "\\x{0000000061}", "\\x6", "\\xg1", "\\x{110000}", "\\x{}", "\\x", "\\141", "\\1", "\\01",
        "\\060", "\\8", "\\a", "\\e", "\\q", "\\Q", "\\Qfoo.bar\\E", "\\Qfoo.bar", "\\Qa\\E+", "\\Qab\\E+", "\\Q\\E*", "\\E", "\\C",
        "\\b", "\\bfoo\\b.*", "foo\\b.bar", "foo\\Bbar", "\\Bfoo", "foo\\b", ".*\\b-\\b.*", "a\\B*b", "\\", "a\\", "\\-", "\\_",
        "\\.", "\\/", "\\u0061", "\\k", "\\G", "\\R", "\\h", "a|b|ab", "(a*)*", "(a*)+b", "(a+)+b", "(a|aa)+", "(a|b)*ab(a|b)*",
        "((a{2}){2}){2}", "(a{0,3}){2}b", "(|a)b", "(a|)b", "(?:a?){24}a{24}", "a(?i)*", "[a&&b]", "a#b", "a b", "orders(-\\d+)?",
        "(orders|test-topic)", "__.*", "[a-zA-Z0-9._-]+", "[+--]", "[a-\\d]", "[\\d-z]", "[\\Qa\\E]", "a{0}", "a{0}b", "(a){0,1}",
        "(((((((((a)))))))))", "[a-c&&[b]]", "~a", "a{2,2}", "a{1000}", "(?i)ß", "[^\\x00-\\x7f]", "[\\x00-\\x7f]+", "é"};

    static final String[] PIECES = {"a", "b", "o", "[a-c]", "[^o]", ".", "(", ")", "(?:", "(?i)", "|", "*", "+", "?",
        "{2}", "{1,3}", "{", "}", "\\w", "\\b", "^", "$", "-", "_", "\\.", "foo", "\\d", "]", "[", "(?P<x>", "\\Q", "\\E"};

    public static void main(String[] args) {
        List<String> patterns = new ArrayList<>(Arrays.asList(PATTERNS));
        Random random = new Random(2);
        for (int i = 0; i < 700; i++) {
            StringBuilder made = new StringBuilder();
            for (int n = random.nextInt(9); n >= 0; n--) made.append(PIECES[random.nextInt(PIECES.length)]);
            patterns.add(made.toString());
        }
        StringBuilder out = new StringBuilder("{\"names\":[");
        for (String name : NAMES) out.append(name == NAMES[0] ? "" : ",").append('"').append(name).append('"');
        out.append("],\n\"patterns\":[");
        String comma = "\n";
        for (String pattern : patterns) {
            out.append(comma).append("[\"");
            for (char c : pattern.toCharArray())
                out.append(c == '\\' || c == '"' ? "\\" + c : c > 126 ? String.format("\\u%04x", (int) c) : "" + c);
            out.append("\",");
            try {
                Pattern compiled = Pattern.compile(pattern);
                StringBuilder matches = new StringBuilder();
                for (int n = 0; n < NAMES.length; n++)
                    if (compiled.matcher(NAMES[n]).matches()) matches.append(matches.length() > 0 ? "," : "").append(n);
                out.append('[').append(matches).append("]]");
            } catch (RuntimeException invalid) {
                out.append("null]");
            }
            comma = ",\n";
        }
        System.out.println(out.append("\n]}"));
    }
}
