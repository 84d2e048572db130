# Print the fields to query, joined by commas: those of our list (wanted) that --help-query-gpu (stdin) has.
/^"/ {
    n = split($0, part, "\"")
    for (i = 2; i <= n; i += 2) known[part[i]] = 1
}
END {
    n = split(wanted, want, " ")
    for (i = 1; i <= n; i++) {
        m = split(want[i], name, "|")
        for (j = 1; j <= m; j++)
            if (name[j] in known) {
                fields = fields (fields == "" ? "" : ",") name[j]
                break
            }
    }
    if (("uuid" in known) && ("index" in known)) print fields
}
