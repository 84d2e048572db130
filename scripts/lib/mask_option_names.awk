# Names of options, variables, JSON keys and headers whose values are secret.

# match_secret_name: return whether the value of this name is secret. Tokens of language models are not.
function match_secret_name(name,    upper) {
    upper = name !~ /[a-z]/
    name = tolower(name)
    if (name !~ /pass|pw|psw|secret|token|cred|cookie|bearer|auth|sig|jwt|psk|key|otp|pat|phrase|mnemonic|ngrok/) return 0 # most names: the patterns below are slow
    gsub(/^[^a-z0-9]+|[^a-z0-9]+$/, "", name)
    if (name ~ /^(no|skip|without|disable|enable|ask|prompt|has|is|num|max|min|require)[-_]/ || name ~ MODEL_TOKEN || name ~ NO_PASSWORD || name ~ NO_SECRET) return 0
    return name ~ SECRET_END || name ~ SERVICE_KEY || name ~ SECRET_PART || upper && name ~ /_key$/ || name ~ /(auth|access|api|secret)[-_.]?(tokens|secrets)$/ ||
        name ~ /^(key|pat|sig|otp|secrets|passwords|ngrok|token[-_]id)$/
}

# is_secret_name: do the same, with a cache.
function is_secret_name(name) {
    if (!(name in IS_SECRET)) IS_SECRET[name] = match_secret_name(name)
    return IS_SECRET[name]
}

# find_option_kind: return how the value of an option is masked: "" not at all, ~ if it looks random; other kinds are in mask_programs.awk.
function find_option_kind(option,    name) {
    if (option in KINDS) return KINDS[option]
    name = tolower(option)
    gsub(/^-+/, "", name)
    if (name ~ /^(proxy[-_]?)?user$|^(login|userpwd)$/) KINDS[option] = ":"
    else if (name ~ /^((src|dest)[-_])?creds?$|^credential$/ || name ~ /(^|[-_.])auth$/ && option != "-auth" && is_secret_name(name)) KINDS[option] = "?"
    else if (name ~ /^(cookies?|from-literal)$/) KINDS[option] = "x"
    else if (option == "-auth") KINDS[option] = ""
    else if (is_secret_name(option)) KINDS[option] = "="
    else if (option ~ /^-[kKtpP]$/) KINDS[option] = "~"
    else KINDS[option] = name ~ /key|token|secret|auth|cred|pass|api|access|licen/ && name ~ KEY_LIKE && name !~ NO_SECRET && name !~ MODEL_TOKEN ? "~" : ""
    return KINDS[option]
}

# is_bare_secret: return whether the word after this one, which is no option, is secret: aws configure set aws_secret_access_key X, ALTER USER u PASSWORD 'X'.
function is_bare_secret(word) {
    if (!(word in IS_BARE))
        IS_BARE[word] = tolower(word) ~ /^[-a-z0-9_.:\/]*(password|passwd|passphrase|psk|requirepass|masterauth|apikey|api[-_]key|access[-_]key([-_]id)?|secret[-_]key|account[-_]key|client[-_]secret|auth[-_]?token|(access|session|refresh|api)[-_]token|_pw)$/ &&
            (word !~ /^[.~]*\// || word ~ /:_/) && tolower(word) !~ NO_PASSWORD && tolower(word) !~ /^(no|skip|without|disable|enable|ask|prompt)[-_]/
    return IS_BARE[word]
}

BEGIN {
    MODEL_TOKEN = "(pad|eos|bos|unk|sep|cls|mask|image|img|audio|video|vision|visual|text|stop|special|start|end|next|per|new|placeholder|instance|think|num|max|min|" \
        "modifier|initializer|trigger|concept|eot|sot|sos|boi|eoi|begin|final|first|last|prompt|separator|lang|language|src|tgt|source|target|speaker|word|char|class|query|" \
        "latent|action|state|time|pos|dist|distill|blank|null|unknown|total|input|output|extra|domain|style|delimiter|newline|register)[-_.]tokens?$"
    # `pass` in another sense, and passwords that are none
    NO_PASSWORD = "(render|first|second|single|one|two|three|multi|forward|backward|low|high|band|all|each|every|full|last|final|depth|shadow|num|n|max|per|test|use|auth[-_]user|by)[-_.]pass$|use[-_]auth$|askpass$"
    # about a secret, but not one
    NO_SECRET = "[-_.](file|files|path|dir|folder|fd|stdin|env|var|variable|command|cmd|name|names|arn|store|type|length|len|ref|mode|policy|prompt|method|manager|backend|engine|" \
        "provider|version|count|field|column|label|required|enabled|less|only|expiry|ttl|timeout|retries|helper|cache|size|dim|heads|norm|mask|eval|format|url|uri|endpoint|host|server|port)$"
    SECRET_END = "(password|passwd|passphrase|passcode|passwort|pwd|secret|token|credentials?|creds|cookie|bearer|authorization|signature|jwt|psk|requirepass|masterauth|(pass|seed|recovery)[-_]?phrase|passkey|mnemonic|access[-_]?key[-_]?id)$|" \
        "(^|[-_.:])(pass|pw|auth|pswd|psw|passin|passout)$|(rest|proxy|basic|http)auth$|(db|user|root|admin|my|ftp|owner)pw$|" \
        "(db|user|smtp|imap|mail|root|admin|sudo|redis|mysql|pg|postgres|ssh|store|key|trust|http|ftp|login|web|vnc|bind|ldap|rc|become|my)[-_.]?pass$"
    SECRET_PART = "(^|[-_.])(secrets?|password|passwd|passphrase|credentials?|creds)[-_.]"
    SERVICE_KEY = "(api|secret|access|private|auth|ssh|encryption|signing|wandb|openai|anthropic|kaggle|azure|aws|gcp|google|hf|comet|neptune|licen[sc]e|subscription|functions?|" \
        "master|account|storage|service|session|client|app|db|gpg|rsa|deploy|shared|admin|webhook|pre[-_]?shared|" \
        "aes|hmac|cipher|crypt|apim|product|activation|join|wifi|ingest|instrumentation|integration|bot|mistral|cohere|gemini|groq|replicate|together|deepseek|dashscope|serp|tavily|pinecone|llm)[-_.]?keys?$"
    KEY_LIKE = "(^|[-_.])(key|keys|apikey|token|secret|auth|cred|pass|api|access|licen[sc]e)([-_.]|$)"
}
