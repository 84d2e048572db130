# Mask passwords, tokens and keys in a command before it leaves the host. Arguments come one at a time, as the process got them, so
# that `--password "two words"` is masked completely. An argument with spaces is parsed as a command: that of `sh -c`, `ssh` or `tmux`.
# Rather mask one word too many than one too few. Needs secret_patterns.awk and the other mask_*.awk; mask_lines.awk is not for hosts.

# hide_command: return the arguments of a process, masked and joined by spaces; at most 4,096 bytes.
function hide_command(arguments, count,    i, text) {
    while (count > 0 && arguments[count] == "") count-- # a process that sets its title has empty ones after it
    begin_program()
    pending = pending_kind = ""
    depth = piped = parentheses = echoes = 0
    for (i = 1; i <= count; i++) text = text (i > 1 ? " " : "") hide_argument(arguments[i])
    return length(text) > 4096 ? substr(text, 1, 4096) "…" : text
}

# hide_argument: mask one argument of a process. A long one is cut: it would take long, and nobody reads it.
function hide_argument(argument,    shown, name, was) {
    if (length(argument) > 2000) argument = substr(argument, 1, 2000) "…"
    if (argument !~ /[ "']/) return hide_word(argument, 0)
    if (argument ~ /-----BEGIN /) { pending = pending_kind = ""; return HIDDEN }
    if (pending_kind != "") {
        shown = tolower(argument) ~ /^(bearer|basic|digest|token) / && pending !~ /^-/ ? HIDDEN : hide_pending(argument)
        if (shown != "") { before = ""; return shown }
    }
    if (match(argument, program == "curl" ? "^(-H|--header=)" : "^[-A-Za-z0-9_.]*[Hh]eader=")) return hide_behind(RLENGTH, argument)
    if (match(argument, /^[A-Za-z][-A-Za-z0-9_]*: */)) {
        name = substr(argument, 1, index(argument, ":") - 1)
        if (is_secret_name(name) && (tolower(name) ~ /-|^(authorization|cookie|token|secret|apikey)$/ || before ~ /^(-H|--header)$/) && !is_harmless(name, substr(argument, RLENGTH + 1)))
            return substr(argument, 1, RLENGTH) HIDDEN
    }
    if (argument ~ /^-[^ ="']*=/) {
        name = substr(argument, 1, index(argument, "=") - 1)
        shown = find_option_kind(name) == "" ? "" : hide_value(find_option_kind(name), name, substr(argument, length(name) + 2))
        if (shown != "") return name "=" shown
    }
    if (argument ~ /^(--?[A-Za-z][-A-Za-z0-9_]*|[A-Z][A-Za-z]*Command)=[^ "'=]+ /) return hide_behind(index(argument, "="), argument) # --rsh=sshpass -p x ssh
    if (match(argument, /^[A-Za-z_][A-Za-z0-9_.]*=/) && !is_text() && is_secret_name(substr(argument, 1, RLENGTH - 1))) return substr(argument, 1, RLENGTH) HIDDEN
    if (argument ~ /["']/) argument = hide_quoted(argument)
    if (argument !~ / /) return hide_word(argument, 0)
    if (at_start && program == "" && depth == 0) return hide_text(argument)
    was = program SUBSEP at_start SUBSEP starts_others SUBSEP in_pairs SUBSEP positions SUBSEP last_word SUBSEP before SUBSEP piped SUBSEP parentheses
    depth++
    echoes = tolower(before) ~ /(pass[a-z]*|secret|token|key)[-_](command|cmd)$/
    begin_program()
    shown = hide_text(argument)
    depth--
    restore_state(was)
    return shown
}

# is_text: return whether this argument is a command line; else NAME=two words is one value.
function is_text() {
    return program == "" || depth > 0 || before ~ /^-[A-Za-z]*c$|^--(wrap|command|extra-vars)$/ || program ~ /^ansible/ || program ~ /^(ssh|tmux|screen|watch|parallel|su|eval|sh|bash|dash|zsh|ksh|ash)$/
}

# hide_behind: mask the rest of an argument, from this place on, as an argument of its own.
function hide_behind(place, argument,    shown) {
    if (depth >= 3) return HIDDEN
    depth++
    shown = hide_argument(substr(argument, place + 1))
    depth--
    return substr(argument, 1, place) shown
}

# restore_state: restore the state before a nested command.
function restore_state(was,    f) {
    split(was, f, SUBSEP)
    program = f[1]
    at_start = f[2] + 0
    starts_others = f[3] + 0
    in_pairs = f[4] + 0
    positions = f[5] + 0
    last_word = f[6]
    before = f[7]
    piped = f[8] + 0
    parentheses = f[9] + 0
}

# hide_text: mask an argument of several words, split as a shell would.
function hide_text(text,    words, word, n, i, shown) {
    parentheses = text ~ /[(`]/
    piped = echoes || (text ~ /\||<<</) && text ~ READS_PASSWORD
    echoes = 0
    while (text ~ /["'\\]/) {
        sub(/^ +/, "", text)
        if (!match(text, /^([^ "'\\]|\\.|"([^"\\]|\\.)*"|'[^']*')+/) || RLENGTH < length(text) && substr(text, RLENGTH + 1, 1) != " ") break # an unclosed quote
        word = substr(text, 1, RLENGTH)
        text = substr(text, RLENGTH + 1)
        shown = shown (shown == "" ? "" : " ") hide_quoted_word(word)
    }
    n = split(text, words, " ")
    for (i = 1; i <= n; i++) shown = shown (shown == "" ? "" : " ") hide_word(words[i], 1)
    return shown
}

# hide_quoted_word: mask a word of a shell command; a quoted one is parsed as an argument.
function hide_quoted_word(word,    quote, inner) {
    quote = substr(word, 1, 1)
    inner = substr(word, 2, length(word) - 2)
    if ((quote == "\"" || quote == "'") && length(word) > 2 && substr(word, length(word)) == quote && !index(inner, quote) && depth < 3) return quote hide_argument(inner) quote
    return hide_word(word, 1)
}
