# What several tools told, in one file: `# part FORM rc=N` before each, and behind it what that tool said on stderr. Before each file of the arguments
# stand part=FORM (empty where there is but one, which needs no name), code=N, and cries=FILE.

function end_part(    line, n) {
    while (cried != "" && (getline line < cried) > 0 && ++n <= 20) {
        gsub(/\r/, " ", line)
        if (line != "") print "# err " substr(line, 1, 500)
    }
    if (cried != "") close(cried)
}

FNR == 1 {
    end_part()
    cried = cries
    if (part != "") print "# part " part " rc=" code
}

END { end_part() }
