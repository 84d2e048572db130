# Print the output of a tool as it is; but no line may look like one of ours, and too long an output is cut.
{ size += length($0) + 1 }
size > 4194304 { cut = "more than 4 MiB was told; the rest is left out"; next }
/\r/ { sub(/\r$/, ""); gsub(/\r/, "?") } # readers may take it for the end of a line
/^#/ { print " " $0; next }
{ print }
