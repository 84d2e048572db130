# Print the files of a push as one update for gpu-receive.sh: a line with their size in bytes (LC_ALL is C), then all of them.
{
    line[NR] = $0
    size += length($0) + 1
}
END {
    print "gpuboard 1 push " size
    for (n = 1; n <= NR; n++) print line[n]
}
