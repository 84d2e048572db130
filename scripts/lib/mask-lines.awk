# Masks commands and process names for the programs of the web side, by the rules of the hosts. Comes before names.awk, which has rules of its own.
# Input: a line `a` and an argument each, and a line `c` where the command ends; or a line `n` and a process name. Output: a line for each `c` and `n`.

/^a/ { arguments[++count] = substr($0, 2) }
/^c/ { print hide_command(arguments, count); count = 0 }
/^n/ { print masked_name(substr($0, 2)) }
{ next }
