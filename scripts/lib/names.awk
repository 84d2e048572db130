# The name of a GPU process may be a whole command line. ps.txt has that, with its secrets masked; here it ends before the first
# option, assignment, address or token. It comes last, behind three cells.
/^(GPU|MIG)-/ && match($0, /^[^,]*, [^,]*, [^,]*, /) {
    cells = substr($0, 1, RLENGTH)
    shown = ""
    n = split(substr($0, RLENGTH + 1), word, " ")
    for (i = 1; i <= n; i++) {
        if (word[i] ~ /[=@]|^(sk-|hf_|gh[pousr]_)/ || i > 1 && word[i] ~ /^-/ || length(word[i]) >= 32 && word[i] ~ /^[0-9A-Fa-f]+$/) {
            $0 = cells shown "•••"
            break
        }
        shown = shown word[i] " "
    }
}
