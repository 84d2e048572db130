"""`gpuboard completion`: the script by which a shell knows what TAB offers."""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, split_arg_string

# Each asks `gpuboard` itself, with the line up to the cursor, and is told a kind, a value and a help in each line.
# A colon ends a word for readline: only what follows it may be offered there.
BASH = r"""_gpuboard() {
    local line=${COMP_LINE:0:COMP_POINT} kind value help
    local typed=${line##*[[:space:]]}
    local head=${typed%"${typed##*:}"}
    [[ $COMP_WORDBREAKS == *:* ]] || head=
    COMPREPLY=()
    while IFS=$'\t' read -r kind value help; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("${value#"$head"}") ;;
        esac
    done < <(_GPUBOARD_LINE=$line _GPUBOARD_COMPLETE=bash_complete "${1/#'~'/$HOME}" 2>/dev/null)
}
complete -o nosort -F _gpuboard gpuboard 2>/dev/null || complete -F _gpuboard gpuboard
"""
ZSH = r"""#compdef gpuboard
_gpuboard() {
    local line="${(j: :)words[1,CURRENT-1]} $PREFIX" kind value help
    local -a offered
    compset -P '--*='
    while IFS=$'\t' read -r kind value help; do
        case $kind in
            dir) _path_files -/ ;;
            file) _path_files ;;
            plain) offered+=("${value//:/\\:}${help:+:$help}") ;;
        esac
    done < <(_GPUBOARD_LINE=$line _GPUBOARD_COMPLETE=zsh_complete ${~${(Q)words[1]}} 2>/dev/null)
    (( ! $#offered )) || _describe -V gpuboard offered
}
if [[ $funcstack[1] == _gpuboard ]]; then
    _gpuboard "$@"
else
    compdef _gpuboard gpuboard
fi
"""
FISH = r"""function __gpuboard_offered
    set -l typed (commandline -ct)
    set -l head (string match -r -- '^--[^=]*=' $typed)
    set -l rest (string replace -r -- '^--[^=]*=' '' $typed)
    set -l line (commandline -cp | string collect)
    for one in (env _GPUBOARD_LINE="$line" _GPUBOARD_COMPLETE=fish_complete gpuboard 2>/dev/null)
        set -l parts (string split -m 2 \t -- $one)
        switch $parts[1]
            case dir
                printf "$head%s\n" (__fish_complete_directories "$rest" '')
            case file
                printf "$head%s\n" (__fish_complete_path "$rest")
            case plain
                printf "$head%s\t%s\n" $parts[2] "$parts[3]"
        end
    end
end
complete -c gpuboard -f -a '(__gpuboard_offered)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


class Complete(ShellComplete):
    """What all three shells are told, in place of what click would tell each."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the cursor, and what is typed of the last: a letter more shows whether one has begun."""
        *words, last = split_arg_string(os.environ.get("_GPUBOARD_LINE", "") + "x")
        return words[1:], last[:-1]

    def format_completion(self, item: CompletionItem) -> str:
        """A line of what is offered."""
        return "\t".join((item.type, item.value, " ".join((item.help or "").split())))


def register() -> None:
    """Let click answer TAB by it."""
    for shell in SCRIPTS:
        add_completion_class(Complete, shell)


@click.command()
@click.argument("shell", type=click.Choice(list(SCRIPTS)))
def completion(shell: str) -> None:
    """Print the script by which a shell completes what you type.

    It offers commands, options, folders, and the hosts and GPUs of the data folder. `./install.sh web` puts it where
    bash (with bash-completion) and fish look for it. Otherwise a line does it, in ~/.bashrc, in ~/.zshrc (below
    compinit), or in ~/.config/fish/config.fish:

    \b
    eval "$(gpuboard completion bash)"
    eval "$(gpuboard completion zsh)"
    gpuboard completion fish | source
    """
    click.echo(SCRIPTS[shell], nl=False)
