# Print the matrix of `nvidia-smi topo -m` as lines of host.txt: its header and a row for each GPU, but neither network cards nor the legend.
{
    sub(/\r$/, "")
    gsub(/\033\[[0-9;]*m/, "") # the header is underlined, also where the output is a file
    gsub(/[\001-\010\012-\037\177]/, "?")
}
/^[ \t]*GPU[0-9]+([ \t]|$)/ && ++rows <= 129 { print "topology=" substr($0, 1, 1000) }
