# Join the output of several tools: `# part FORM rc=N` before each, and its stderr after it. Before each file in the arguments
# are part=FORM (empty if there is only one), code=N, and stderr_file=FILE.

# end_part: print the stderr of the last part.
function end_part(    line, n) {
    while (part_stderr != "" && (getline line < part_stderr) > 0 && ++n <= 20) {
        gsub(/\r/, " ", line)
        if (line != "") print "# err " substr(line, 1, 500)
    }
    if (part_stderr != "") close(part_stderr)
}

FNR == 1 {
    end_part()
    part_stderr = stderr_file
    if (part != "") print "# part " part " rc=" code
}

END { end_part() }
