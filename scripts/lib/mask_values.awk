# Decide which values are not secret, and mask the others. In brackets ] comes first: busybox does not know \].

# is_file: return whether a value is the name of a file, not its content.
function is_file(value) {
    return value ~ /^[-A-Za-z0-9_.\/~]+\.(pem|key|crt|cert|pub|json|txt|ya?ml|toml|p12|pfx|jks|cfg|conf|ini|env)$/ ||
        value ~ /^(~|\.\.?)?\/(home|root|etc|run|var|opt|tmp|mnt|data|srv|usr|proc|nfs|scratch|workspace|secrets|\.ssh|\.config)\//
}

# is_harmless: return whether a value is clearly no secret: a count of tokens, a working folder, the name of a file or method.
function is_harmless(name, value) {
    if (length(value) > 300) return 0
    gsub(/^["']|["']?[],;)}]*$/, "", value)
    if (value == "" || value ~ /^(true|false|none|null|nil|yes|no|on|off|auto|disabled?|enabled?|True|False|None|TRUE|FALSE|NULL)$/) return 1
    name = tolower(name)
    if (name ~ /tokens?$/) return value ~ /^[0-9.]+$/ && length(value) < 8 || value ~ /^(<[^ ]*>|\[[A-Z]+\])$/ || is_file(value)
    if (name ~ /^-*(pat|sig|pw)$/ && value ~ /^[0-9.]+$/ && length(value) < 5) return 1
    if (name == "key" && value ~ /^[a-z_]+$/ && length(value) < 12) return 1 # {"key": "text"}; options are different
    if (name ~ /pwd$/) return value ~ /^[\/.~]/
    if (name ~ /pass(in|out)?$/) return value ~ /^[0-9][0-9]?$|^(env|file|fd):|^stdin$/
    if (name ~ /^-*key$/) return value ~ /^[0-9]+(\.[0-9]+)?(,[0-9]+(\.[0-9]+)?)?[bdfginrRV]*$/ && length(value) < 8 || value ~ /^(lambda|len|str|int|itemgetter|operator)([^A-Za-z0-9]|$)/ || is_file(value)
    if (name ~ /auth$/ && tolower(value) ~ /^(basic|digest|bearer|ntlm|negotiate|password|token|oauth2?|ldap|pam|saml|oidc|kerberos|krb5|gssapi|jwt|google|github|pat|key)$/) return 1
    return name !~ /pass|pw/ && is_file(value)
}

# is_random: return whether a value has 20 characters or more, of which 12 in a row mix digits, small and capital letters.
function is_random(value,    run, i, n, before, now, changes) {
    if (length(value) < 20 || value ~ /[^-A-Za-z0-9_.~+\/=:]|:\/\// || is_file(value)) return 0
    while (match(value, /[A-Za-z0-9+]+/)) {
        run = substr(value, RSTART, RLENGTH)
        value = substr(value, RSTART + RLENGTH)
        n = length(run)
        if (n < 12) continue
        changes = 0
        before = ""
        for (i = 1; i <= n; i++) {
            now = substr(run, i, 1)
            now = now ~ /[0-9]/ ? "d" : now ~ /[A-Z]/ ? "u" : "l"
            if (i > 1 && now != before) changes++
            before = now
        }
        if (changes >= (run ~ /[0-9]/ ? 2 : 6)) return 1 # UvicornWorker is a name
    }
    return 0
}

# hide_value: mask a value of this kind; return "" if it is harmless.
function hide_value(kind, name, value,    at, quote) {
    quote = substr(value, 1, 1)
    if (length(value) > 1 && (quote == "\"" || quote == "'") && substr(value, length(value)) == quote) {
        value = hide_value(kind, name, substr(value, 2, length(value) - 2))
        return value == "" ? "" : quote value quote
    }
    if (index(value, HIDDEN)) return value
    if (is_harmless(name, value)) return ""
    if (kind == "~") return is_random(value) ? HIDDEN : ""
    if (kind == ":") {
        at = index(value, ":")
        if (!at || value ~ /:\/\// || name ~ /^--user/ && (value ~ /^[0-9]+:[0-9]+$/ || (program in STARTS_OTHERS))) at = 0
        if (at) return substr(value, 1, at) HIDDEN
        at = index(value, "%")
        return at ? substr(value, 1, at) HIDDEN : ""
    }
    if (kind == "," || kind == "%") { at = index(value, kind); return at ? substr(value, 1, at) HIDDEN : "" }
    if (kind == "?") { at = index(value, ":"); return (at && at < 40 ? substr(value, 1, at) : "") HIDDEN }
    if (kind == "x") { at = index(value, "="); return at ? substr(value, 1, at) HIDDEN : is_file(value) ? "" : HIDDEN }
    if (name ~ /^-pass(in|out)?$/ && index(value, "pass:") == 1) return "pass:" HIDDEN
    return HIDDEN
}

# hide_quoted: mask NAME="value", "NAME": 'value', "NAME", "value" and --NAME "value" within an argument, up to the closing quote.
function hide_quoted(text,    done, name, quote, i, between, count) {
    while (match(text, /[-A-Za-z0-9_.]+[]"'\\]*( *[=:,]| ) *\\?["']/)) {
        if (++count > MAX_PAIRS) return done HIDDEN
        name = substr(text, RSTART, RLENGTH)
        done = done substr(text, 1, RSTART + RLENGTH - 1)
        text = substr(text, RSTART + RLENGTH)
        quote = substr(name, length(name))
        match(name, /[]"'\\]*( *[=:,]| ) *\\?["']$/)
        between = substr(name, RSTART)
        name = substr(name, 1, RSTART - 1)
        if (between ~ /^["'\\]*,/ && (between !~ /^["'\\]/ || name !~ /^--/ && name !~ /^[A-Z][A-Z0-9_]*$/ && !is_bare_secret(name))) continue
        if (between !~ /[=:,]/ && name !~ /^-/ || !is_secret_name(name)) continue
        for (i = 1; i <= length(text) && (substr(text, i, 1) != quote || substr(text, i - 1, 1) == "\\" && done !~ /\\.$/); i++);
        if (is_harmless(name, substr(text, 1, i - 1))) continue
        text = substr(text, i)
        if (match(text, /^["'][^] ,;:})&|]+/) && RLENGTH > 1) text = quote substr(text, RLENGTH + 1)
        done = done HIDDEN
    }
    return done text
}

# hide_values: mask NAME=value and NAME:value anywhere in a word, up to a quote, in a URL up to &; after a colon at the end, the next word is the value.
function hide_values(word,    done, name, end, url, value, count) {
    url = word ~ /:\/\/|\?|^[A-Za-z0-9_]+=[^&]*&[A-Za-z0-9_]+=/
    while (match(word, /[-A-Za-z0-9_.]+[]"'\\]*[=:]/)) {
        if (++count > MAX_PAIRS) return done HIDDEN
        name = substr(word, RSTART, RLENGTH)
        done = done substr(word, 1, RSTART + RLENGTH - 1)
        word = substr(word, RSTART + RLENGTH)
        sub(/[]"'\\]*[=:]$/, "", name)
        if (word ~ /^\\?["']/ || index(word, HIDDEN) == 1) continue
        end = match(word, url ? "[&\"']" : "[\"']") ? RSTART : length(word) + 1
        value = substr(word, 1, end - 1)
        if (!is_secret_name(name)) { if (length(value) < 20 || find_option_kind(name) != "~" || !is_random(value)) continue }
        else if (value == "" && done ~ /:$/ && word == "") { pending = name; pending_kind = "=" ; continue }
        else if (is_harmless(name, value)) continue
        done = done HIDDEN
        word = substr(word, end)
    }
    return done word
}

BEGIN {
    MAX_PAIRS = 100 # per argument: one with more is meant to take long
}
