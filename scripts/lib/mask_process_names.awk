# Cut the names of GPU processes, which may be whole command lines, before the first option, assignment, URL, address or token.
# ps.txt has the command, with its secrets masked.

# mask_process_name: return as much of a name as may leave the host.
function mask_process_name(name,    n, word, i, shown) {
    n = split(name, word, " ")
    for (i = 1; i <= n; i++) {
        if (word[i] ~ /[=@]|:\/\/|^\/p(ass|wd|assword)?:|^(sk-|[sr]k_|hf_|gh[pousr]_|github_pat_|gl(pat|rt|dt|sa)-|xox[a-z]-|AKIA|ASIA|AIza|eyJ|ya29\.|GOCSPX-|hv[sbr]\.)/) return shown "•••"
        if (i > 1 && word[i] ~ /^-/ || length(word[i]) >= 32 && word[i] ~ /^[0-9A-Fa-f]+$/ || word[i] ~ /^[0-9][0-9][0-9][0-9][0-9][0-9]+:[A-Za-z0-9_-]/) return shown "•••"
        shown = shown word[i] " "
    }
    return name
}

# CSV of nvidia-smi: the name comes last, after three cells.
/^(GPU|MIG)-/ && match($0, /^[^,]*, [^,]*, [^,]*, /) { $0 = substr($0, 1, RLENGTH) mask_process_name(substr($0, RLENGTH + 1)) }

# JSON of amd-smi: on its own line, or all on one line.
/"(process_)?name": *"/ {
    rest = $0
    $0 = ""
    while (match(rest, /"(process_)?name": *"/)) {
        $0 = $0 substr(rest, 1, RSTART + RLENGTH - 1)
        rest = substr(rest, RSTART + RLENGTH)
        if (!match(rest, /^([^"\\]|\\.)*"/)) rest = "" # an unclosed string
        else {
            $0 = $0 mask_process_name(substr(rest, 1, RLENGTH - 1))
            rest = substr(rest, RLENGTH)
        }
    }
    $0 = $0 rest
}
