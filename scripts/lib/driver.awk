# The driver's version, as the first good row of a --query-gpu answer tells it (-F ', ').
/^index, / {
    for (i = 1; i <= NF; i++) if ($i == "driver_version" || $i == "kmd_version") column = i
    next
}
column && $column ~ /^[0-9][0-9.]*$/ {
    print $column
    exit
}
