# One update, from stdin: each file begins with the header of its task and of this host, and ends with `# end`. They are written in `new`
# and read again: a full disk is found out here. Says `files` and their names, `wrong` and a sentence, or `cut`.
BEGIN {
    name["gpus"] = "gpus.csv"
    name["processes"] = "processes.csv"
    name["ps"] = "ps.txt"
    name["host"] = "host.txt"
    ended = 1
}
{ bytes += length($0) + 1 }
wrong != "" { next } # to the end, so that what follows is understood
ended && /^# gpuboard / {
    if ($0 !~ /^# gpuboard 1 task=[a-z]+ host=[A-Za-z0-9._-]+ time=[0-9]+ every=[0-9]+ took_ms=[0-9]+ rc=[0-9]+$/) {
        wrong = "the first line of a file is not that of a snapshot"
        next
    }
    task = substr($4, 6)
    if (substr($5, 6) != host) wrong = "this key is for " host ", and the snapshot of " substr($5, 6, 63)
    else if (!(task in name)) wrong = "there is no task " substr(task, 1, 20)
    else if (task in lines) wrong = "the update has two files of the task " task
    if (wrong != "") next
    file = new "/" name[task]
    order[++count] = task
    lines[task] = 0
}
!count {
    wrong = "the first line of a file is not that of a snapshot"
    next
}
{
    print > file
    size_of[task] += length($0) + 1
    lines[task]++
    ended = ($0 == "# end")
}
END {
    if (bytes == size + 1) wrong = wrong == "" ? "the last line of a file is not # end" : wrong # nor ended
    else if (bytes != size) wrong = "cut"
    if (wrong == "cut") said = "cut"
    else if (wrong != "") said = "wrong " wrong
    else if (!ended) said = "wrong the last line of a file is not # end"
    else {
        said = "files"
        for (n = 1; n <= count; n++) {
            file = new "/" name[order[n]]
            close(file)
            found = 0
            while ((getline line < file) > 0) found += length(line) + 1
            if (found != size_of[order[n]]) exit 1
            said = said " " name[order[n]]
        }
    }
    print said
}
