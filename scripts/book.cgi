#!/bin/sh
# book.cgi: the booking service, for a web server that runs CGI programs.
#
# It runs where it is, in a clone with .venv or in an installed package, and
# must run as the user who builds the board. Settings are found as by every
# gpuboard command; GPUBOARD_CONF in the server's settings names another file.
# docs/webservers.md has examples for nginx, Apache and lighttpd.
set -eu
PATH=${PATH:-/usr/local/bin:/usr/bin:/bin}
export PATH

# refuse_request SENTENCE: answer with 503, and write the sentence to the server's log.
refuse_request() {
    printf 'gpuboard: %s\n' "$1" >&2
    case ${CONTENT_LENGTH:-} in
        '' | *[!0-9]* | ??????*) ;;
        *) dd bs=1 count="$CONTENT_LENGTH" >/dev/null 2>&1 || : ;; # Apache expects the body to be read
    esac
    printf 'Status: 503 Service Unavailable\r\nContent-Type: application/json\r\nCache-Control: no-store\r\n\r\n'
    printf '{"error":"the booking service has wrong settings: the server'\''s log has the reason for the admin"}\n'
    exit 0
}

self=$(readlink -f "$0")
scripts=${self%/*}
if [ -e "$scripts/../cli.py" ]; then # in an installed package, in lib/pythonX.Y/site-packages
    base=${scripts%/*/*} prefix=$scripts/../../../../..
else
    base=${scripts%/*} prefix=$base/.venv
fi
python=$prefix/bin/python3
[ -x "$python" ] || python=python3
[ "$python" != python3 ] || python3 -I -c 'import sys; sys.path.insert(0, sys.argv[1]); import orjson, site_builder' "$base" 2>/dev/null ||
    refuse_request "$self finds no Python with gpuboard: run ./install.sh web, and use the book.cgi that it installs"
# -I: do not import modules from the current folder
exec "$python" -I -c 'import sys; sys.path.insert(0, sys.argv[1]); from site_builder.web.booking_app import run_cgi; run_cgi()' "$base"
