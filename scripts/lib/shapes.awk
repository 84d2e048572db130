# Secrets that give themselves away by their shape: in URLs, long hex, and the prefixes that services put before their tokens.

function repeat(text, times,    all) {
    while (times-- > 0) all = all text
    return all
}

# hide_urls: scheme://user:password@host keeps the user; a long word in the user's place is a token; so is the path of a chat's hook.
function hide_urls(word,    done, start, hit) {
    while (match(word, /:\/\/[^\/@: ]*:[^@ ]*@([^\/@ ]*@)*/)) {
        hit = substr(word, RSTART, RLENGTH)
        start = 3 + index(substr(hit, 4), ":")
        done = done substr(word, 1, RSTART - 1) (substr(hit, start + 1) ~ /^[0-9]+\// ? hit : substr(hit, 1, start) HIDDEN "@")
        word = substr(word, RSTART + RLENGTH)
    }
    word = done word
    if (match(word, /https?:\/\/[^\/@: ]+@/) && RLENGTH > 20) word = substr(word, 1, RSTART - 1) "https://" HIDDEN "@" substr(word, RSTART + RLENGTH)
    if (match(word, /(hooks\.slack\.com\/services|discord(app)?\.com\/api\/webhooks)\/[^ "']+/)) {
        hit = substr(word, RSTART, RLENGTH)
        match(hit, /(services|webhooks)\//)
        word = substr(word, 1, index(word, hit) - 1) substr(hit, 1, RSTART + RLENGTH - 1) HIDDEN substr(word, index(word, hit) + length(hit))
    }
    return word
}

# hide_shapes: words that give themselves away: long hex, and the prefixes that services put before their tokens.
function hide_shapes(word,    done, hit, last, keep) {
    while (match(word, SHAPES)) {
        hit = substr(word, RSTART, RLENGTH)
        done = done substr(word, 1, RSTART - 1)
        word = substr(word, RSTART + RLENGTH)
        last = substr(done, length(done))
        keep = match(hit, PREFIXES) ? RLENGTH : 0
        # mask-rcnn and hf_transfer.py are names; a checksum in a path is one, too
        if (keep && (last ~ /[A-Za-z0-9]/ || hit ~ /^(sk|pypi|xai)-[a-z]+[-_][a-z_-]*$/ || hit ~ /^(hf|npm)_/ && word ~ /^[._\/-]/)) done = done hit
        else if (!keep && (last == "/" && done !~ /:\/\// || done ~ /sha(256|512)[:-]$/)) done = done hit
        else done = done substr(hit, 1, keep) HIDDEN
    }
    return done word
}

BEGIN {
    HIDDEN = "•••"
    PREFIXES = "^(sk-(proj-|ant-|or-)?|[sr]k_(live|test)_|hf_|gh[pousr]_|github_pat_|gl(pat|rt|dt)-|xox[abprs]-|nvapi-|pypi-|npm_|gsk_|r8_|xai-|dckr_pat_|" \
        "hvs\\.|SG\\.|tskey-|dop_v1_|AKIA|ASIA|AIza|eyJ)"
    SHAPES = "(sk-|[sr]k_(live|test)_|github_pat_|gl(pat|rt|dt)-|xox[abprs]-|nvapi-|pypi-|xai-|dckr_pat_|hvs\\.|SG\\.|tskey-|dop_v1_)" repeat("[A-Za-z0-9_-]", 8) "[A-Za-z0-9_.-]*" \
        "|(hf_|gh[pousr]_|npm_|gsk_|r8_)" repeat("[A-Za-z0-9]", 8) "[A-Za-z0-9]*" \
        "|(AKIA|ASIA)" repeat("[A-Z0-9]", 16) "|AIza" repeat("[A-Za-z0-9_-]", 20) "[A-Za-z0-9_-]*" \
        "|eyJ" repeat("[A-Za-z0-9_-]", 5) "[A-Za-z0-9_-]*\\.[A-Za-z0-9_-]+\\.?[A-Za-z0-9_-]*|" repeat("[0-9A-Fa-f]", 32) "[0-9A-Fa-f]*"
}
