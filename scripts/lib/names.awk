# The name of a GPU process may be a whole command line. ps.txt has that, with its secrets masked; here it ends before the first
# option, assignment, address or token. It comes last, behind three cells.
/^(GPU|MIG)-/ && match($0, /^[^,]*, [^,]*, [^,]*, /) {
    cells = substr($0, 1, RLENGTH)
    name = substr($0, RLENGTH + 1)
    if (match(name, /(^| )(-|[^ ]*[=@]|sk-|hf_|gh[pousr]_|[0-9A-Fa-f]+$)/) && (RSTART > 1 || RLENGTH > 30)) name = substr(name, 1, RSTART - 1) " •••"
    $0 = cells name
}
