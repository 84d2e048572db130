# Check names of images and people in labels and environments, which others wrote.

# parse_image: return the short name of an image; "" if it is not valid.
function parse_image(text) {
    sub(/^docker\.io\/(library\/)?/, "", text)
    if (match(text, /sha256:[0-9a-f]+$/) && RLENGTH > 19) text = substr(text, 1, RSTART + 18)
    return text ~ "^[A-Za-z0-9_][A-Za-z0-9_.:/@+-]*$" && length(text) <= 200 ? text : "" # not every awk takes \/ within [] for a / alone
}

# parse_person: return a login, of any letters; "" if it is not valid, or a common user of images.
function parse_person(text) {
    if (text == "" || length(text) > 64 || index(text, "/") || text ~ /^[-.]|^[0-9]+$|[\001-\040\177"'`$*?()<>|;&!~#%^=,:+{}]|\[|\]/) return ""
    return tolower(text) ~ /^(root|nobody|jovyan|user|ubuntu|debian|centos|ec2-user|vscode|coder|rstudio|admin|default|app|nonroot)$/ ? "" : text
}
