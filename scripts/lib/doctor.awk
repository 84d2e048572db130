# What was found, as JSON. A line a check: status, group, id, words, advice, separated by tabs. Variables: host, version, worst.

# text: a JSON string. Bytes that are no UTF-8 become a ?, or no program would read any of it.
function text(words,    i, n, letter, size, made) {
    n = length(words)
    for (i = 1; i <= n; i += size) {
        letter = substr(words, i, 1)
        size = 1
        if (letter == "\"" || letter == "\\") letter = "\\" letter
        else if (letter !~ /^[ -~]$/) {
            size = letters(substr(words, i, 4))
            letter = size ? substr(words, i, size) : "?"
            if (!size) size = 1
        }
        made = made letter
    }
    return "\"" made "\""
}

# letters: of how many bytes the letter is with which this begins; 0 if it is none. Where awk counts in letters, it is one.
function letters(bytes) {
    if (bytes ~ /^[\302-\337][\200-\277]/) return 2
    if (bytes ~ /^(\340[\240-\277]|[\341-\354\356\357][\200-\277]|\355[\200-\237])[\200-\277]/) return 3
    if (bytes ~ /^(\360[\220-\277]|[\361-\363][\200-\277]|\364[\200-\217])[\200-\277][\200-\277]/) return 4
    return 0
}

BEGIN {
    FS = "\t"
    printf "{\"host\": %s, \"version\": %s, \"worst\": %s, \"checks\": [", text(host), text(version), text(worst)
}
{ printf "%s\n {\"id\": %s, \"group\": %s, \"status\": %s, \"what\": %s, \"do\": %s}", (NR > 1 ? "," : ""), text($3), text($2), text($1), text($4), ($5 == "" ? "null" : text($5)) }
END { print "\n]}" }
