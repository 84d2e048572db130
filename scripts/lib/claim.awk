# What may be an image and what a person, of the words that labels and environments have: others than we wrote them.

# plain_image: as people call it; "" where it is no name of an image.
function plain_image(text) {
    sub(/^docker\.io\/(library\/)?/, "", text)
    if (match(text, /sha256:[0-9a-f]+$/) && RLENGTH > 19) text = substr(text, 1, RSTART + 18)
    return text ~ "^[A-Za-z0-9_][A-Za-z0-9_.:/@+-]*$" && length(text) <= 200 ? text : "" # not every awk takes \/ within [] for a / alone
}

# plain_person: a login, of whatever letters; "" for what is none, and for users that images have.
function plain_person(text) {
    if (text == "" || length(text) > 64 || index(text, "/") || text ~ /^[-.]|^[0-9]+$|[\001-\040\177"'`$*?()<>|;&!~#%^=,:+{}]|\[|\]/) return ""
    return tolower(text) ~ /^(root|nobody|jovyan|user|ubuntu|debian|centos|ec2-user|vscode|coder|rstudio|admin|default|app|nonroot)$/ ? "" : text
}
