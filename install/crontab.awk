# A crontab in which the block of `role` holds the lines of the variable BLOCK. Between the markers, what calls our programs is ours;
# any other line there is somebody's, and comes behind the block. Where the end is missing, the block ends with the last line of ours.
function bare(line) { sub(/\r$/, "", line); return line }
function is_ours(line) { return bare(line) == about || index(line, "/gpuboard/scripts/gpu-check.sh") || index(line, "/gpuboard/venv/bin/python") }
function put_block() {
    if (ENVIRON["BLOCK"] == "" || done++) return
    printf "%s\n%s\n%s\n%s\n", first, about, ENVIRON["BLOCK"], last
}
# end_of(i): the number of the line that ends the block that begins at i.
function end_of(i,    j) {
    for (j = i + 1; j <= NR && bare(line[j]) != first; j++) if (bare(line[j]) == last) return j
    for (j = i + 1; j <= NR && is_ours(line[j]); j++) { }
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
        if (bare(line[i]) == first) {
            put_block()
            for (stop = end_of(i++); i <= stop; i++) if (!is_ours(line[i]) && bare(line[i]) != last) print line[i]
            i--
        } else if (bare(line[i]) != last) print line[i]
    }
    put_block()
}
