# Write the format of a snapshot: a header with its duration, what the other programs print, errors (the files in `errors`, and `cut`),
# the end. BEGIN prints the header, so a program that works in its own BEGIN comes before this one, and one that prints there after it.
BEGIN {
    getline line < "/proc/uptime"
    close("/proc/uptime")
    split(line, field, " ")
    print header " took_ms=" int((field[1] * 100 - began_cs) * 10 + 0.5) " rc=" rc
}
END {
    n = split(errors, file, " ")
    for (i = 1; i <= n; i++)
        while ((getline line < file[i]) > 0 && ++error_count <= 20) {
            gsub(/\r/, " ", line)
            if (line != "") print "# err " substr(line, 1, 500)
        }
    if (cut) print "# err " cut
    print "# end"
}
