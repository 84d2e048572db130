# The form of a snapshot: header, the lines of the first file, those of the second (errors=1 before it) as `# err`, `# end`.
BEGIN { print header }
errors {
    if (++count > 20 || $0 == "") next
    print "# err " substr($0, 1, 500)
    next
}
{ size += length($0) + 1 }
size > 4194304 { next }
/^#/ { print " " $0; next } # a command's own words never pass for ours
{ print }
END {
    if (size > 4194304) print "# err more was said than 4 MiB; the rest is left out"
    print "# end"
}
