# Print a settings file in which KEY has VALUE, in its old place or at the end; or, with -v drop=1, without its first line of KEY, which counts.
# `ends_with_newline` says whether the last line has a newline; that stays as it is.

# is_key: return whether a line sets KEY.
function is_key(line) { return index(line, ENVIRON["KEY"] "=") == 1 }

# print_line: print a line, without its newline.
function print_line(line) { printf "%s%s", (count++ ? "\n" : ""), line }
{
    if (!is_key($0)) print_line($0)
    else if (replaced++) print_line($0)
    else if (drop) next
    else print_line(ENVIRON["KEY"] "=" ENVIRON["VALUE"] (/\r$/ ? "\r" : ""))
}

END {
    if (!drop && !replaced) { print_line(ENVIRON["KEY"] "=" ENVIRON["VALUE"]); ends_with_newline = 1 }
    if (count && ends_with_newline) printf "\n"
}
