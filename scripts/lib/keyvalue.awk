# Lines of key=value; what cannot be read is left out, never 0.

function first_line(file,    line) {
    if ((getline line < file) <= 0) line = ""
    close(file)
    return line
}

function tell(key, value) { if (value != "") print key "=" value }
