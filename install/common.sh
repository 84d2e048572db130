# shellcheck shell=sh
# What all parts of install.sh and tests/run.sh share: messages, apt, Python, .venv. It is read in the folder of the clone.

# messages and checks of the host scripts; their umask and locale are for snapshots alone
previous_umask=$(umask) previous_locale=${LC_ALL-}
LIB=scripts/lib
# shellcheck source=scripts/lib/common.sh
. scripts/lib/common.sh
umask "$previous_umask"
unset LC_ALL
[ -z "$previous_locale" ] || export LC_ALL="$previous_locale"

# print_line MESSAGE...: print progress, a line for each step. Errors are printed by say and die.
print_line() { printf '%s\n' "$*"; }

# become_root: set sudo to what runs a command as root, or fail; never ask for a password.
become_root() {
    sudo=
    [ "$(id -u)" = 0 ] || { sudo='sudo -n' && $sudo true 2>/dev/null; }
}

# apt_install PACKAGE...: install packages as root.
apt_install() {
    become_root && command -v apt-get >/dev/null || return 1
    print_line "Installing $* by apt-get"
    { $sudo apt-get update -q && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@"; } >/dev/null
}

# find_python: set python to one that is new enough and can make a venv, or die with the command that helps.
find_python() {
    for python in python3 python3.13 python3.12 python3.11 python3.10 python3.9 ''; do
        [ -n "$python" ] || die 'Python 3.9 or newer was not found; on Debian and Ubuntu: sudo apt-get install python3 python3-venv'
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null && break
    done
    can_make_venv || { apt_install "$python-venv" && can_make_venv; } ||
        die "$python cannot create a virtual environment; on Debian and Ubuntu: sudo apt-get install $python-venv"
}

# can_make_venv: whether $python can make a venv.
can_make_venv() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }

# print_venv_facts VENV: print its path and Python version; they differ if it was moved, or its Python replaced.
print_venv_facts() { "$1/bin/python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2], sys.prefix)' 2>/dev/null; }

# create_venv VENV: replace it by an empty one.
create_venv() {
    find_python
    rm -rf "$1"
    print_line "Creating $1 with $python"
    "$python" -m venv "$1"
    print_venv_facts "$1" >"$1/made-as"
}

# is_sound_venv VENV: whether it is there, and still what it was when it was made. One that somebody else made here counts too, if it works.
is_sound_venv() {
    [ -s "$1/made-as" ] || ! is_working_venv "$1" || print_venv_facts "$1" >"$1/made-as"
    [ -s "$1/made-as" ] && [ "$(print_venv_facts "$1")" = "$(cat "$1/made-as")" ]
}

# is_working_venv VENV: whether it has pip, and was made for this place. A shell of its own reads `activate`, which changes the shell.
is_working_venv() {
    "$1/bin/python" -m pip --version >/dev/null 2>&1 || return
    # shellcheck disable=SC2016 # for the inner shell
    sh -c '. "$1/bin/activate" && [ "$VIRTUAL_ENV" -ef "$1" ]' - "$1" 2>/dev/null
}

# pip_install VENV OPTIONS...: run pip, which prints only errors.
pip_install() {
    venv=$1
    shift
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

# make_venv EXTRA: install the package and its dependencies, editable, into .venv; again only if pyproject.toml changed.
make_venv() {
    is_sound_venv .venv || create_venv .venv
    stamp=.venv/.installed${1:+-$1}
    if [ ! -e "$stamp" ] || [ -n "$(find pyproject.toml -newer "$stamp")" ]; then
        print_line 'Installing gpuboard and its dependencies into .venv'
        pip_install .venv --editable ".${1:+[$1]}" || die 'pip could not install the dependencies of gpuboard (see above); fix that and run this again'
        touch "$stamp"
    fi
}
