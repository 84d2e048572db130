# Print the output of a tool as it is; but no line may look like one of ours, and too long an output is cut.
{ size += length($0) + 1 }
size > 4194304 { cut = "output larger than 4 MiB; the rest is omitted"; next }
/\r/ { sub(/\r$/, ""); gsub(/\r/, "?") } # readers may take it for the end of a line
/^#/ { print " " $0; next }
{ print }
