# If the answer of --query-gpu has another version of the driver than `known`, write it to driver_file.
/^index, / {
    n = split($0, cell, ", ")
    for (i = 1; i <= n; i++) if (cell[i] == "driver_version" || cell[i] == "kmd_version") column = i
}
column && !seen && /^[0-9]/ {
    split($0, cell, ", ")
    if (cell[column] ~ /^[0-9][0-9.]*$/) {
        seen = 1
        if (cell[column] != known) print cell[column] > driver_file
    }
}
