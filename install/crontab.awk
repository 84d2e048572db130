# Print a crontab in which the block of `role` has the lines of the variable BLOCK. Between the markers, lines that call our programs are ours;
# other lines are moved after the block. If the end marker is missing, the block ends with our last line.

# strip_return: return a line without a carriage return at its end.
function strip_return(line) { sub(/\r$/, "", line); return line }

# is_own_line: return whether a line within the block is ours.
function is_own_line(line) { return strip_return(line) == about || index(line, "/gpuboard/scripts/gpu-check.sh") || index(line, "/gpuboard/venv/bin/python") }

# print_block: print the block once, if it has lines.
function print_block() {
    if (ENVIRON["BLOCK"] == "" || printed++) return
    printf "%s\n%s\n%s\n%s\n", first, about, ENVIRON["BLOCK"], last
}

# find_block_end: return the number of the line that ends the block that begins at i.
function find_block_end(i,    j) {
    for (j = i + 1; j <= NR && strip_return(line[j]) != first; j++) if (strip_return(line[j]) == last) return j
    for (j = i + 1; j <= NR && is_own_line(line[j]); j++) { }
    return j - 1
}

BEGIN {
    first = "# >>> gpuboard " role " >>>"
    last = "# <<< gpuboard " role " <<<"
    about = "# Written by gpuboard's install.sh, and anew each time it is called."
}

{ line[NR] = $0 }
END {
    for (i = 1; i <= NR; i++) {
        if (strip_return(line[i]) == first) {
            print_block()
            for (stop = find_block_end(i++); i <= stop; i++) if (!is_own_line(line[i]) && strip_return(line[i]) != last) print line[i]
            i--
        } else if (strip_return(line[i]) != last) print line[i]
    }
    print_block()
}
