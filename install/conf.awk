# A settings file in which KEY has VALUE, in its old place or at the end; or, with -v drop=1, without its first line of KEY, the one that counts.
# `whole` tells whether the last line had its end: it keeps what it had.
function is_key(line) { return index(line, ENVIRON["KEY"] "=") == 1 }
function put(line) { printf "%s%s", (count++ ? "\n" : ""), line }
{
    if (!is_key($0)) put($0)
    else if (found++) put($0)
    else if (drop) next
    else put(ENVIRON["KEY"] "=" ENVIRON["VALUE"] (/\r$/ ? "\r" : ""))
}
END {
    if (!drop && !found) { put(ENVIRON["KEY"] "=" ENVIRON["VALUE"]); whole = 1 }
    if (count && whole) printf "\n"
}
