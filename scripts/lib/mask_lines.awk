# Mask commands and process names for programs on the web host, by the same rules. Comes before mask_process_names.awk, which has rules of its own.
# Input: lines of `a` and an argument, and a line `c` at the end of a command; or lines of `n` and a process name. Output: a line for each `c` and `n`.

/^a/ { arguments[++count] = substr($0, 2) }
/^c/ { print hide_command(arguments, count); count = 0 }
/^n/ { print mask_process_name(substr($0, 2)) }
{ next }
