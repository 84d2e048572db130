# Mask the words of a command, one after the other. State: program (with its subcommand), at_start (the next word is a program), starts_others
# (a later one may be), positions (words until the secret ones; -1: none are), in_pairs (all values of name=value are secret), pending and
# pending_kind (the option whose value comes next), before (the previous option, if it had no value), last_word, piped (echo prints a password).

# begin_program: reset the state at the start of a command.
function begin_program() {
    program = last_word = before = ""
    at_start = 1
    starts_others = in_pairs = 0
    positions = -1
}

# hide_pending: mask the value of the previous option; return "" if this word is no value, or harmless.
function hide_pending(word,    kind, name) {
    kind = pending_kind
    name = pending
    pending = pending_kind = ""
    if (word ~ /^--?[A-Za-z][-A-Za-z0-9_.]*(=.*)?$|^--?$/) return ""
    if (tolower(word) ~ /^(["']?(bearer|basic|digest|token|apikey)|=|:=|to)$/ && name !~ /^-/) { pending = name; pending_kind = kind; return word }
    if (name !~ /^-/ && tolower(word) ~ /^(from|where|and|or|is|in|for|of|as|was|on|not|has)$/) return "" # select password from users
    return hide_value(kind, name, word)
}

# hide_rest: mask secrets that are recognised anywhere in a word.
function hide_rest(word,    shown) {
    shown = word
    if (index(word, "@") || index(word, "://")) shown = hide_urls(shown)
    if (index(word, "=") || index(word, ":")) shown = hide_values(shown)
    if (length(word) > 10 && may_match_pattern(shown)) shown = hide_patterns(shown)
    return shown
}

# hide_flag: mask the options by which some programs take a password: -p x, -px, curl -su user:x. Return "" if this is none.
function hide_flag(word,    kind, flag, head, value) {
    if (program == "curl" && match(word, /^-[fgikLnNsSvOJRI#]+[uUb]/) || program ~ /^ldap/ && match(word, /^-[xLvZWnc]+w/)) {
        head = substr(word, 1, RLENGTH - 1)
        word = "-" substr(word, RLENGTH)
    }
    if ((program, word) in FLAGS) {
        kind = FLAGS[program, word]
        if (kind != "+") { pending = word; pending_kind = kind == "1" ? "=" : kind }
        return head substr(word, head == "" ? 1 : 2)
    }
    flag = substr(word, 1, (program, substr(word, 1, 3)) in FLAGS ? 3 : 2)
    if (!((program, flag) in FLAGS)) return ""
    kind = FLAGS[program, flag]
    if (kind == "1" || substr(word, 1, 2) == "--") return ""
    value = hide_value(kind == "+" ? "=" : kind, flag, substr(word, length(flag) + 1))
    return value == "" ? "" : head substr(flag, head == "" ? 1 : 2) value
}

# hide_option: mask an option.
function hide_option(word,    shown, at, name, kind) {
    before = ""
    if (word == "--") { at_start = 1; return word }
    if (word == "-m" && last_word ~ /^(python|pypy)[0-9.]*$/) { at_start = 1; return word }
    if (program == "htpasswd" && word ~ /^-[A-Za-z]*b/) positions = word ~ /n/ ? 1 : 2
    shown = program == "" ? "" : hide_flag(word)
    if (shown != "") return shown
    at = index(word, "=")
    name = at ? substr(word, 1, at - 1) : word
    if (name ~ /^--?[A-Za-z0-9][-A-Za-z0-9_.]*$/) {
        kind = find_option_kind(name)
        if (!at) {
            before = name
            if (kind != "") { pending = name; pending_kind = kind }
            else if (name == "-U") { pending = name; pending_kind = "%" }
        } else if (kind != "") {
            shown = hide_value(kind, name, substr(word, at + 1))
            if (shown != "") return name "=" shown
        }
    }
    return hide_rest(word)
}

# recognise_program: return whether this word is a program or its subcommand, and set the state for it.
function recognise_program(word,    base) {
    base = substr(word, 1, 300)
    sub(/.*[;|&(`{]/, "", base)
    if (base == "") base = word
    sub(/.*\//, "", base)
    if (at_start && word ~ /^[A-Za-z_][A-Za-z0-9_]*=/) return 0
    if (at_start || (starts_others && (base in KNOWN) || (base in ANYWHERE) && base != program) && before !~ NAME_OPTION) {
        program = last_word = base
        at_start = in_pairs = 0
        if (piped && base ~ /^(echo|printf)$/) positions = 0
        else positions = base in POSITIONS ? POSITIONS[base] : -1
        starts_others = base in STARTS_OTHERS
        return 1
    }
    last_word = base
    if (!((program " " word) in SUBCOMMANDS)) return 0
    program = program " " word
    if (program in POSITIONS) positions = POSITIONS[program]
    in_pairs = program in PAIRS
    return 1
}

# hide_bare: mask a word that is no option.
function hide_bare(word,    shown, at, last) {
    last = tolower(last_word)
    if (tolower(word) ~ /^["']?bearer$/) { pending = word; pending_kind = "="; return word }
    if (recognise_program(word)) { before = ""; return hide_rest(word) }
    shown = hide_rest(word)
    before = ""
    if (word ~ /^(add-)?authtoken$/ || tolower(word) == "by" && last == "identified") { pending = word; pending_kind = "=" }
    else if (is_bare_secret(word) && program !~ /^([efz]?grep|rg|ag|ack|sed|find|git|vim?|less|cat|man|ls)$/ && !index(shown, HIDDEN)) { pending = word; pending_kind = "=" }
    else if (word ~ /^(pypi-token|github-oauth|gitlab-token|bearer)\.[^ ]+$/ && program ~ /^(poetry|composer)$/) positions = 0
    else if (word ~ /^http-basic\.[^ ]+$/) positions = 1
    else if (word ~ /^\/(p|pass|pwd|password|gp):[^ ]/ && word !~ /^\/p:[A-Za-z_.]+=/) return substr(word, 1, index(word, ":")) HIDDEN
    else if (program == "sqlplus" && match(word, /^[^\/@ ]+\/[^@ ]+/)) { at = index(word, "/"); return substr(word, 1, at) HIDDEN substr(word, RLENGTH + 1) }
    else if (in_pairs && (at = index(word, "=")) > 1) return substr(word, 1, at) HIDDEN
    else if (piped && word == "<<<") { pending = word; pending_kind = "=" }
    else if (is_value) return shown
    else if (positions > 0) positions--
    else if (positions == 0 && word !~ /^[A-Za-z_]+=|^[-+%]/) {
        at = hide_value(index(word, ":") && program ~ /^(echo|printf)$/ ? "?" : "=", word, word)
        return at == "" ? word : at
    }
    return shown
}

# hide_word: mask a word; within the text of an argument it may begin or end a command.
function hide_word(word, in_text,    shown, head, tail) {
    if (in_text) {
        if (word ~ /^([;|&!({]|\|\||&&|\|&)$/ || pending_kind == "" && word ~ /^(then|do|else|elif|if|while)$/) { begin_program(); pending = pending_kind = ""; return word }
        if (pending_kind == "" && match(word, /^([A-Za-z_][A-Za-z0-9_]*=)?(\$\(|[(`{])+/) && RLENGTH < length(word) && word !~ /^([A-Za-z_][A-Za-z0-9_]*=)?\{["'A-Za-z]/) {
            begin_program()
            head = substr(word, 1, RLENGTH)
            word = substr(word, RLENGTH + 1)
        }
        if (match(word, /;+$/) && RSTART > 1) { tail = substr(word, RSTART); word = substr(word, 1, RSTART - 1) }
        if (parentheses && match(word, /[)`]+$/) && RSTART > 1) { tail = substr(word, RSTART) tail; word = substr(word, 1, RSTART - 1) }
    }
    is_value = pending_kind != ""
    shown = is_value ? hide_pending(word) : ""
    if (shown == "") shown = word ~ /^-./ ? hide_option(word) : hide_bare(word)
    else before = ""
    if (tail ~ /;/) begin_program()
    return head shown tail
}

BEGIN {
    # options whose value may be the name of a program
    NAME_OPTION = "^-+(name|container-name|hostname|host|network|job-name|user|u|U|h|J|S)$"
}
