# What a tool said, as it is; but none of its lines passes for one of ours, and a flood is cut off.
{ size += length($0) + 1 }
size > 4194304 { cut = "more than 4 MiB was told; the rest is left out"; next }
/\r/ { sub(/\r$/, ""); gsub(/\r/, "?") } # it ends a line too, for whoever reads this
/^#/ { print " " $0; next }
{ print }
