#!/bin/sh
# tests/mutate.sh: change the code on purpose, one small thing at a time, and print the changes that no test notices.
#
#   tests/mutate.sh [MODULE...]   mutants of MODULE, such as site_builder.fleet.gpu_state; without
#                                 one, of all modules that [tool.mutmut] in pyproject.toml names
#
# It works on a copy, in build/mutation. There `mutmut show NAME` prints a mutant, and
# `mutmut run NAME` tries it again. MUTMUT names another mutmut than that of .venv.
set -eu
cd "$(dirname "$0")/.."
# shellcheck source=install/common.sh
. install/common.sh

case ${1:-} in
    -*)
        print_help tests/mutate.sh
        exit
        ;;
esac
mutmut=${MUTMUT:-$PWD/.venv/bin/mutmut}
[ -x "$mutmut" ] || die "There is no $mutmut. mutmut needs Python 3.10 or newer; there it comes with .venv/bin/pip install -e '.[dev]'"
patterns=
for module in "$@"; do patterns="$patterns $module.*"; done

rm -rf build/mutation
mkdir -p build/mutation
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -Pp -t build/mutation
cd build/mutation
# mutmut changes no function that has a decorator, and a result that was cached earlier hides a mutant
find site_builder/fleet site_builder/snapshots -name '*.py' -exec sed -i \
    -e '/^@lru_cache/d' -e 's/ = lru_cache([^)]*)(\([a-z_]*\))$/ = \1/' {} +
set -f
# shellcheck disable=SC2086 # one word a pattern
nice "$mutmut" run $patterns >run.log 2>&1 || {
    tail -n 30 run.log >&2
    exit 2
}
"$mutmut" results --all true | awk '
    $2 == "not" { next } # of a module that was not asked for
    {
        name = $1
        sub(/\.[^.]*$/, "", name)
        mutants[name]++
        if ($2 ~ /^(killed|timeout)$/) killed[name]++; else print
    }
    END { for (name in mutants) printf "%s: %d mutants, %d killed\n", name, mutants[name], killed[name] }'
