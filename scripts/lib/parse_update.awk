# Parse one update: each file begins with the header of its task and this host, and ends with `# end`. Files are written to `new`
# and read again, to detect a full disk. Prints `files` and their names, `wrong` and a sentence, or `cut`.
BEGIN {
    name["gpus"] = "gpus.csv"
    name["processes"] = "processes.csv"
    name["ps"] = "ps.txt"
    name["host"] = "host.txt"
    ended = 1
}
{ bytes += length($0) + 1 }
error != "" { next } # read to the end, so that the next update can be parsed
ended && /^# gpuboard / {
    if ($0 !~ /^# gpuboard 1 task=[a-z]+ host=[A-Za-z0-9._-]+ time=[0-9]+ every=[0-9]+ took_ms=[0-9]+ rc=[0-9]+$/) {
        error = "the first line of a file is not a snapshot header"
        next
    }
    task = substr($4, 6)
    if (substr($5, 6) != host) error = "this key is for " host ", and the snapshot of " substr($5, 6, 63)
    else if (!(task in name)) error = "there is no task " substr(task, 1, 20)
    else if (task in lines) error = "the update has two files of the task " task
    if (error != "") next
    file = new "/" name[task]
    order[++count] = task
    lines[task] = 0
}
!count {
    error = "the first line of a file is not a snapshot header"
    next
}
{
    print > file
    size_of[task] += length($0) + 1
    lines[task]++
    ended = ($0 == "# end")
}
END {
    if (bytes == size + 1) error = error == "" ? "the last line of a file is not # end" : error # without a newline at the end
    else if (bytes != size) error = "cut"
    if (error == "cut") result = "cut"
    else if (error != "") result = "wrong " error
    else if (!ended) result = "wrong the last line of a file is not # end"
    else {
        result = "files"
        for (n = 1; n <= count; n++) {
            file = new "/" name[order[n]]
            close(file)
            bytes_read = 0
            while ((getline line < file) > 0) bytes_read += length(line) + 1
            if (bytes_read != size_of[order[n]]) exit 1
            result = result " " name[order[n]]
        }
    }
    print result
}
