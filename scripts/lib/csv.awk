# What nvidia-smi said, as it is; but none of its lines passes for one of ours, and a flood is cut off.
{ size += length($0) + 1 }
size > 4194304 { cut = "nvidia-smi wrote more than 4 MiB; the rest is left out"; next }
/^#/ { print " " $0; next }
{ print }
