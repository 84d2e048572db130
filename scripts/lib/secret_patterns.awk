# Mask secrets that are recognised by their pattern: in URLs, long hex, and tokens with the prefix of a service.

# repeat_text: return a text repeated `times` times.
function repeat_text(text, times,    all) {
    while (times-- > 0) all = all text
    return all
}

# hide_urls: mask the password in scheme://user:password@host, a long word in the place of the user, and the path of a webhook.
function hide_urls(word,    done, start, end, hit) {
    while (match(word, /:\/\/[^\/@: ]*:[^@ ]*@([^\/@ ]*@)*/)) {
        hit = substr(word, RSTART, RLENGTH)
        start = 3 + index(substr(hit, 4), ":")
        done = done substr(word, 1, RSTART - 1) (substr(hit, start + 1) ~ /^[0-9]+\// ? hit : substr(hit, 1, start) HIDDEN "@")
        word = substr(word, RSTART + RLENGTH)
    }
    word = done word
    if (!index(word, "://")) return hide_login(word)
    if (match(word, /https?:\/\/[^\/@: ]+@/) && RLENGTH > 20) {
        start = RSTART
        end = RSTART + RLENGTH
        hit = hide_patterns(substr(word, start, RLENGTH))
        if (!index(hit, HIDDEN)) hit = substr(hit, 1, index(hit, "//") + 1) HIDDEN "@"
        word = substr(word, 1, start - 1) hit substr(word, end)
    }
    if (match(word, HOOKS)) {
        start = RSTART + RLENGTH
        match(substr(word, start), word ~ /conda[^\/]*\/t\// ? "^[^/ \"']*" : "^[^ \"']*")
        if (RLENGTH >= 8) word = substr(word, 1, start - 1) HIDDEN substr(word, start + RLENGTH)
    }
    return word
}

# hide_login: mask user:password@host without a scheme, as in proxies. Not image:tag@sha256:…, and not email:bob@host.
function hide_login(word,    start, at) {
    if (match(word, /^jdbc:oracle:thin:[^\/@ ]+\/[^@ ]+@/)) return substr(word, 1, index(word, "/")) HIDDEN substr(word, RLENGTH)
    if (!match(word, /(^|[=,"'])[^:@\/ =,"']+:[^@\/ ]+@[A-Za-z0-9]/) || word ~ /@sha(256|512):/ || word ~ /(^|[="'])(mailto|e?mail|to|from|cc|sip|acct|xmpp|git|ssh):/) return word
    start = RSTART + index(substr(word, RSTART), ":")
    for (at = RSTART + RLENGTH - 2; index(substr(word, at + 1), "@"); at += index(substr(word, at + 1), "@"));
    return substr(word, 1, start - 1) HIDDEN substr(word, at)
}

# is_hash: return whether long hex is a name: of a commit, a file, a container.
function is_hash(done, hit, rest) {
    if (index(done, "/") && done !~ /:\/\/|[=:@?]/ || substr(done, length(done)) == "/" && done !~ /:\/\// || rest ~ /^(\/|\.[A-Za-z])/ && done !~ /:\/\// || done ~ /sha(256|512)[:-]$/) return 1
    if (done ~ /[-_.A-Za-z]([-_.]|=)?$/ && tolower(done) ~ HASH_NAME || done == "" && tolower(before) ~ HASH_NAME) return 1
    if (program == "git" || done ~ /:\/\/[^@]*\/[^@]*@$/) return length(hit) == 40
    return length(hit) == 64 && program ~ /^(docker|podman|nerdctl|runc|crun|conmon|containerd-shim.*)$/
}

# may_match_pattern: check quickly, by a pattern that every awk compiles only once; PATTERNS is slow.
function may_match_pattern(word) {
    return word ~ /sk-|[sr]k_|(whsec|hf|gh[pousr]|pat|npm|gsk|r8|v1|glsa|shpat|api|figd|sbp|pw|tkn|lsv2|pcsk)_|(gl(pat|rt|dt|sa|soat)|xox[abeprs]|xapp|nvapi|pypi|xai|pplx|tskey|GOCSPX|KEY|PMAK|NRAK)-|(hv[sbr]|SG|ya29)\.|1\/\/0|ATATT|AKIA|ASIA|AIza|eyJ|:AA|[0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f]/
}

# hide_patterns: mask long hex, and tokens with the prefix of a service.
function hide_patterns(word,    done, hit, last, keep) {
    while (match(word, PATTERNS)) {
        hit = substr(word, RSTART, RLENGTH)
        done = done substr(word, 1, RSTART - 1)
        word = substr(word, RSTART + RLENGTH)
        last = substr(done, length(done))
        keep = match(hit, PREFIXES) ? RLENGTH : 0
        # mask-rcnn and hf_transfer.py are names, and so is a checksum in a path
        if (keep && (last ~ /[A-Za-z0-9]/ || hit ~ /^(sk|pypi|xai)-[a-z]+[-_][a-z_-]*$/ || hit ~ /^(hf|npm)_/ && word ~ /^[._\/-]/)) done = done hit
        else if (hit ~ /^[0-9]+:/) done = done HIDDEN
        else if (!keep && is_hash(done, hit, word)) done = done hit
        else done = done substr(hit, 1, keep) HIDDEN
    }
    return done word
}

BEGIN {
    HIDDEN = "•••"
    HOOKS = "(hooks\\.slack\\.com/services|discord(app)?\\.com/api/webhooks|/webhookb2|/bot/v2/hook|/hooks?|/webhooks?|/with/key|conda[^/]*/t|sctapi\\.ftqq\\.com|api\\.day\\.app)/"
    HASH_NAME = "(revision|rev|commit|sha|sha1|sha256|sha512|md5|hash|checksum|digest|ref|tree|etag|fingerprint|uuid|[-_.]id|^-*id|run|ckpt|checkpoint)[-_=:]?$"
    PREFIXES = "^(sk-(proj-|ant-|or-)?|[sr]k_(live|test)_|whsec_|hf_|gh[pousr]_|github_pat_|gl(pat|rt|dt|sa|soat)-|glsa_|xox[abeprs]-|xapp-|nvapi-|pypi-|npm_|gsk_|r8_|xai-|pplx-|dckr_pat_|" \
        "hv[sbr]\\.|SG\\.|tskey-|dop_v1_|shpat_|lin_api_|figd_|sbp_|pscale_(pw|tkn)_|lsv2_[ps][tk]_|pcsk_|tgp_v1_|GOCSPX-|ya29\\.|1//0|AGE-SECRET-KEY-|PMAK-|NRAK-|ATATT3x|AKIA|ASIA|AIza|eyJ)"
    PATTERNS = "(sk-|[sr]k_(live|test)_|whsec_|github_pat_|gl(pat|rt|dt|sa|soat)-|xox[abeprs]-|xapp-|nvapi-|pypi-|xai-|pplx-|dckr_pat_|hv[sbr]\\.|SG\\.|tskey-|dop_v1_|glsa_|shpat_|lin_api_|figd_|sbp_|" \
        "pscale_(pw|tkn)_|lsv2_[ps][tk]_|pcsk_|tgp_v1_|GOCSPX-|ya29\\.|1//0|AGE-SECRET-KEY-|PMAK-|NRAK-|ATATT3x)" repeat_text("[A-Za-z0-9_-]", 8) "[A-Za-z0-9_.-]*" \
        "|(hf_|gh[pousr]_|npm_|gsk_|r8_)" repeat_text("[A-Za-z0-9]", 8) "[A-Za-z0-9]*" \
        "|(AKIA|ASIA)" repeat_text("[A-Z0-9]", 16) "|AIza" repeat_text("[A-Za-z0-9_-]", 20) "[A-Za-z0-9_-]*" \
        "|eyJ" repeat_text("[A-Za-z0-9_-]", 5) "[A-Za-z0-9_-]*\\.[A-Za-z0-9_-]+\\.?[A-Za-z0-9_-]*|eyJ" repeat_text("[A-Za-z0-9_-]", 24) "[A-Za-z0-9_=-]*" \
        "|" repeat_text("[0-9]", 8) "[0-9]*:AA" repeat_text("[A-Za-z0-9_-]", 20) "[A-Za-z0-9_-]*|" repeat_text("[0-9A-Fa-f]", 32) "[0-9A-Fa-f]*"
}
