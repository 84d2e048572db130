# Print key=value lines; what cannot be read is left out, never 0.

# read_first_line: return the first line of a file, or "".
function read_first_line(file,    line) {
    if ((getline line < file) <= 0) line = ""
    close(file)
    return line
}

# print_value: print key=value unless the value is empty.
function print_value(key, value) { if (value != "") print key "=" value }
