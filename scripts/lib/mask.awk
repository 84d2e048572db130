# Hides passwords, tokens and keys in a command before it leaves the host. The words come one argument at a time, as the
# process was given them, so that `--password "two words"` is hidden whole. Better one word too many hidden than one too few.

# secret_name: whether what is called so is better not shown. The tokens of language models are no secrets.
function secret_name(name,    upper) {
    upper = name !~ /[a-z]/
    name = tolower(name)
    gsub(/^[-"'{[\\]+|["'\]\\]+$/, "", name)
    if (name ~ /^(no|skip|without|disable)[-_]/ || name ~ MODEL_TOKEN) return 0
    return name ~ /(password|passwd|passphrase|passcode|pwd|secret|token|credentials?|cookie|bearer|authorization|signature|authtoken)$/ ||
        name ~ SERVICE_KEY || upper && name ~ /_key$/ || name ~ /(auth|access|api|secret)[-_.]?(tokens|secrets)$/ ||
        name ~ /^(pass|pw|key|auth|pat|sig|secrets|passwords)$/ || name ~ /(db|user|smtp|mail|root|admin|sudo|redis|mysql|pg|postgres)[-_.]?pass$/
}

# harmless: a value that is plainly none: a count of tokens, a working folder.
function harmless(name, value) {
    name = tolower(name)
    return name ~ /token$/ && value ~ /^[0-9.]+$/ && length(value) < 8 || name ~ /pwd$/ && value ~ /^[\/.~]/
}

# hide_quoted: NAME="value", "NAME": 'value', --NAME "value" within an argument, with spaces inside, up to the closing quote.
function hide_quoted(text,    done, name, quote, i) {
    while (match(text, /[-A-Za-z0-9_.]+["'\\\]]*( *[=:]| ) *\\?["']/)) {
        name = substr(text, RSTART, RLENGTH)
        done = done substr(text, 1, RSTART + RLENGTH - 1)
        text = substr(text, RSTART + RLENGTH)
        quote = substr(name, length(name))
        if (name !~ /[=:]/ && name !~ /^-/) continue
        sub(/["'\\\]]*( *[=:]| ) *\\?["']$/, "", name)
        if (!secret_name(name)) continue
        for (i = 1; i <= length(text) && (substr(text, i, 1) != quote || substr(text, i - 1, 1) == "\\" && done !~ /\\.$/); i++);
        text = substr(text, i)
        if (match(text, /^["'][^ ,;:})&|\]]+/) && RLENGTH > 1) text = quote substr(text, RLENGTH + 1)
        done = done HIDDEN
    }
    return done text
}

# hide_values: NAME=value and NAME:value anywhere in a word, up to a quote, in a URL to &; with nothing behind it, the next word is the value.
function hide_values(word,    done, name, end, url) {
    url = word ~ /:\/\/|\?/
    while (match(word, /[-A-Za-z0-9_.]+["'\\\]]*[=:]/)) {
        name = substr(word, RSTART, RLENGTH)
        done = done substr(word, 1, RSTART + RLENGTH - 1)
        word = substr(word, RSTART + RLENGTH)
        sub(/["'\\\]]*[=:]$/, "", name)
        if (!secret_name(name) || word ~ /^\\?["']/ || harmless(name, word)) continue
        if (word == "") pending = name
        else {
            end = match(word, url ? "[&\"']" : "[\"']") ? RSTART : length(word) + 1
            if (substr(word, end - 1, 1) == "\\") pending = name # TOKEN=two\ words
            done = done HIDDEN
            word = substr(word, end)
        }
    }
    return done word
}

# hide_flag: the flags by which some programs take a password: -p x, -px.
function hide_flag(word,    flag) {
    if (word !~ /^-/ && match(word, /[^\/]+$/)) program = (substr(word, RSTART) ~ /^login$/) ? program " login" : substr(word, RSTART)
    flag = FLAGS[program]
    if (flag == "" || index(word, flag) != 1) return word
    if (word == flag) { if (program !~ /^(mysql|maria|7z)/) pending = flag; return word }
    return flag (program == "curl" && index(word, ":") ? substr(word, length(flag) + 1, index(word, ":") - length(flag)) : "") HIDDEN
}

function hide_word(word,    shown, name) {
    name = pending
    pending = ""
    if (name != "") {
        if (tolower(word) ~ /^["']?(bearer|basic|digest|token|apikey)$/) { pending = name; return word }
        if (index(word, HIDDEN) || harmless(name, word)) return word
        if (name == "-u") return word ~ /:/ && word !~ /^[0-9]+:[0-9]+$/ ? substr(word, 1, index(word, ":")) HIDDEN : word
        if (word !~ /^-/) return HIDDEN
    }
    shown = hide_flag(word)
    if (shown != word) return shown
    if (index(word, "@") || index(word, "://")) shown = hide_urls(shown)
    if (index(word, "=") || index(word, ":")) shown = hide_values(shown)
    if (length(word) > 10) shown = hide_shapes(shown)
    if (word ~ /^--?[A-Za-z0-9][-A-Za-z0-9_.]*$/ && (word ~ /^--/ || word !~ /^-auth$/) && secret_name(word)) pending = word
    if (tolower(word) ~ /^["']?(bearer|authtoken)$/ || program == "wandb login" && word == "login") pending = "token "
    if (word ~ /^--(proxy-)?user$/) pending = "-u"
    if (word ~ /^--(proxy-)?user=[^:]*:/) shown = substr(word, 1, index(word, ":")) HIDDEN
    return shown
}

# hide_argument: a whole argument of a process; begin_command() comes before the first. A long one is cut: it would take long, and is not read.
function hide_argument(argument,    word, n, i, text, name) {
    if (length(argument) > 2000) argument = substr(argument, 1, 2000) "…"
    if (argument ~ /-----BEGIN /) return HIDDEN
    if (match(tolower(argument), /^((proxy-)?authorization|(set-)?cookie): */)) return substr(argument, 1, RLENGTH) HIDDEN
    if (pending != "" && pending != "-u" && argument !~ /^-/ && !harmless(pending, argument) && tolower(argument) !~ /^(bearer|basic|digest|token)( |$)/) { pending = ""; return HIDDEN }
    name = substr(argument, 1, index(argument, "=") - 1)
    if (argument ~ /^-[^ ]*=/ && secret_name(name) && !harmless(name, substr(argument, length(name) + 2))) return name "=" HIDDEN
    if (argument ~ /["']/) argument = hide_quoted(argument)
    n = split(argument, word, " ")
    if (n <= 1) return hide_word(argument)
    for (i = 1; i <= n; i++) text = text (i > 1 ? " " : "") hide_word(word[i])
    return text
}

function begin_command() { pending = program = "" }

BEGIN {
    MODEL_TOKEN = "(pad|eos|bos|unk|sep|cls|mask|image|audio|video|vision|stop|special|start|end|next|per|new|placeholder|instance|think|num|max|min|" \
        "modifier|initializer|trigger|concept|eot|sot|begin|final|first|last|prompt|separator)[-_.]token$"
    SERVICE_KEY = "(api|secret|access|private|auth|ssh|encryption|signing|wandb|openai|anthropic|kaggle|azure|aws|gcp|google|hf|comet|neptune|licen[sc]e|" \
        "master|account|storage|service|session|client|app|db|gpg|rsa|deploy|shared)[-_.]?keys?$"
    n = split("sshpass -p mysql -p mysqldump -p mariadb -p 7z -p redis-cli -a ldapsearch -w zip -P unzip -P ipmitool -P openssl -k curl -u", list, " ")
    for (i = 1; i < n; i += 2) FLAGS[list[i]] = list[i + 1]
    FLAGS["docker login"] = FLAGS["podman login"] = FLAGS["az login"] = "-p"
}
