# Hides passwords, tokens and keys in a command before it leaves the host. The words come one argument at a time, as the
# process was given them, so that `--password "two words"` is hidden whole. Better one word too many hidden than one too few.

function repeat(text, times,    all) {
    while (times-- > 0) all = all text
    return all
}

# secret_name: whether what is called so is better not shown. Tokens of language models are no secrets.
function secret_name(name) {
    name = tolower(name)
    gsub(/^[-"'{\\]+|["'\\]+$/, "", name)
    if (name ~ /^(no|skip|without|disable)[-_]/) return 0
    if (name ~ /(pad|eos|bos|unk|sep|cls|mask|image|stop|special|start|end|next|per|new)[-_.]token$/) return 0
    return name ~ /(password|passwd|passphrase|passcode|pwd|secret|token|credentials?|cookie|bearer|authorization)$/ ||
        name ~ /(api|secret|access|private|auth|ssh|encryption|signing)[-_.]?keys?$/ ||
        name ~ /(auth|access|api|secret)[-_.]?(tokens|secrets)$/ || name ~ /(^|[-_.])(pass|key|auth|pat|secrets|passwords)$/
}

# hide_urls: scheme://user:password@host keeps the user.
function hide_urls(word,    done, start) {
    if (index(word, "@")) while (match(word, /:\/\/[^\/@:]*:[^\/]*@/)) {
        start = RSTART + 3 + index(substr(word, RSTART + 3), ":")
        done = done substr(word, 1, start - 1) HIDDEN "@"
        word = substr(word, RSTART + RLENGTH)
    }
    return done word
}

# hide_shapes: words that give themselves away: long hex, and the prefixes that services put before their tokens.
function hide_shapes(word,    done, hit) {
    if (length(word) < 11) return word
    while (match(word, SHAPES)) {
        hit = substr(word, RSTART, RLENGTH)
        done = done substr(word, 1, RSTART - 1)
        word = substr(word, RSTART + RLENGTH)
        if (hit ~ /^(hf|npm)_/ && word ~ /^[._\/-]/) done = done hit # a file's name, such as hf_transfer.py
        else done = done (match(hit, PREFIXES) ? substr(hit, 1, RLENGTH) : "") HIDDEN
    }
    return done word
}

# hide_quoted: NAME="value", "NAME": 'value', with spaces inside, up to the closing quote.
function hide_quoted(text,    done, name, quote, end) {
    while (match(text, /[-A-Za-z0-9_.]+["'\\]* *[=:] *\\?["']/)) {
        name = substr(text, RSTART, RLENGTH)
        done = done substr(text, 1, RSTART + RLENGTH - 1)
        text = substr(text, RSTART + RLENGTH)
        quote = substr(name, length(name))
        sub(/["'\\]* *[=:] *\\?["']$/, "", name)
        if (!secret_name(name)) continue
        end = index(text, quote)
        done = done HIDDEN
        text = end ? substr(text, end) : ""
    }
    return done text
}

# hide_values: NAME=value and NAME:value anywhere in a word, up to a quote or &; with nothing behind it, the next word is the value.
function hide_values(word,    done, name, end) {
    while (match(word, /[-A-Za-z0-9_.]+["'\\]*[=:]/)) {
        name = substr(word, RSTART, RLENGTH)
        done = done substr(word, 1, RSTART + RLENGTH - 1)
        word = substr(word, RSTART + RLENGTH)
        sub(/["'\\]*[=:]$/, "", name)
        if (!secret_name(name) || word ~ /^["']/) continue
        if (word == "") pending = 1
        else {
            end = match(word, /[&"']/) ? RSTART : length(word) + 1
            done = done HIDDEN
            word = substr(word, end)
        }
    }
    return done word
}

function hide_word(word,    shown) {
    if (pending) {
        pending = 0
        if (tolower(word) ~ /^["']?(bearer|basic|digest|token)$/) { pending = 1; return word }
        if (index(word, HIDDEN)) return word
        if (word !~ /^-/) return HIDDEN
    }
    if (user_next && word ~ /^[^:\/]+:/ && word !~ /^[^:]+:[0-9]+$/) { user_next = 0; return substr(word, 1, index(word, ":")) HIDDEN }
    user_next = word ~ /^(-u|--user|--proxy-user)$/
    if (sshpass && word ~ /^-p/) { if (word == "-p") pending = 1; else word = "-p" HIDDEN }
    shown = hide_shapes(hide_values(hide_urls(word)))
    if (word ~ /^--?[A-Za-z0-9][-A-Za-z0-9_.]*$/ && secret_name(word)) pending = 1
    if (tolower(word) ~ /^["']?bearer$/) pending = 1
    return shown
}

# hide_argument: a whole argument of a process; `begin_command()` comes before the first.
function hide_argument(argument,    word, n, i, text) {
    if (argument ~ /-----BEGIN /) return HIDDEN
    if (pending && argument !~ /^-/ && tolower(argument) !~ /^(bearer|basic|digest|token)( |$)/) { pending = 0; return HIDDEN }
    if (argument ~ /^-[^ ]*=/ && secret_name(substr(argument, 1, index(argument, "=") - 1))) return substr(argument, 1, index(argument, "=")) HIDDEN
    argument = hide_quoted(argument)
    n = split(argument, word, " ")
    if (n <= 1) return hide_word(argument)
    for (i = 1; i <= n; i++) text = text (i > 1 ? " " : "") hide_word(word[i])
    return text
}

function begin_command(program) {
    pending = user_next = 0
    sshpass = program ~ /(^|\/)sshpass$/
}

BEGIN {
    HIDDEN = "•••"
    word_char = "[A-Za-z0-9]"
    PREFIXES = "^(sk-|sk_live_|rk_live_|hf_|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|nvapi-|pypi-|npm_|AKIA|ASIA|AIza|eyJ)"
    SHAPES = "(sk-(proj-|ant-)?|sk_live_|rk_live_|github_pat_|glpat-|xox[abprs]-|nvapi-|pypi-)" repeat("[A-Za-z0-9_-]", 8) "[A-Za-z0-9_-]*" \
        "|(hf_|gh[pousr]_|npm_)" repeat(word_char, 8) word_char "*" \
        "|(AKIA|ASIA)" repeat("[A-Z0-9]", 16) "|AIza" repeat("[A-Za-z0-9_-]", 20) "[A-Za-z0-9_-]*" \
        "|eyJ[A-Za-z0-9_-]+\\.[A-Za-z0-9_-]+\\.?[A-Za-z0-9_-]*" \
        "|" repeat("[0-9A-Fa-f]", 32) "[0-9A-Fa-f]*"
}
