# Print the results as JSON. Input: a line for each check: status, group, id, message, advice, separated by tabs. Variables: host, version, worst.

# format_json_string: return a JSON string. Bytes that are not UTF-8 become a ?, or no program could read the output.
function format_json_string(text,    i, n, character, size, json) {
    n = length(text)
    for (i = 1; i <= n; i += size) {
        character = substr(text, i, 1)
        size = 1
        if (character == "\"" || character == "\\") character = "\\" character
        else if (character !~ /^[ -~]$/) {
            size = count_character_bytes(substr(text, i, 4))
            character = size ? substr(text, i, size) : "?"
            if (!size) size = 1
        }
        json = json character
    }
    return "\"" json "\""
}

# count_character_bytes: return the number of bytes of the first character; 0 if it is not UTF-8.
function count_character_bytes(bytes) {
    if (bytes ~ /^[\302-\337][\200-\277]/) return 2
    if (bytes ~ /^(\340[\240-\277]|[\341-\354\356\357][\200-\277]|\355[\200-\237])[\200-\277]/) return 3
    if (bytes ~ /^(\360[\220-\277]|[\361-\363][\200-\277]|\364[\200-\217])[\200-\277][\200-\277]/) return 4
    return 0
}

BEGIN {
    FS = "\t"
    printf "{\"host\": %s, \"version\": %s, \"worst\": %s, \"checks\": [", format_json_string(host), format_json_string(version), format_json_string(worst)
}
{ printf "%s\n {\"id\": %s, \"group\": %s, \"status\": %s, \"what\": %s, \"do\": %s}", (NR > 1 ? "," : ""), format_json_string($3), format_json_string($2), format_json_string($1), format_json_string($4), ($5 == "" ? "null" : format_json_string($5)) }
END { print "\n]}" }
