#!/bin/sh
# tests/coverage.sh: the share of statements and branches that the Python tests run, for each package of site_builder.
#
#   tests/coverage.sh [OPTION...]   options and files for pytest; without one, all tests but
#                                   those that need root
#
# Commands that tests start in a process of their own count too, but for those on the
# machines of tests/support/machine.py, which are what needs root. ./install.sh test installs
# what this needs.
set -eu
cd "$(dirname "$0")/.."
# shellcheck source=install/common.sh
. install/common.sh

case ${1:-} in
    -h | --help)
        print_help tests/coverage.sh
        exit
        ;;
esac
results=0
# the deselected test interrupts a program anywhere, and so in the lock of coverage, which is never released then
set -- --deselect tests/integration/test_demo.py::test_a_signal_during_the_first_round_leaves_nothing "$@"
.venv/bin/python -m pytest --quiet -n 4 --dist loadfile --no-loadscope-reorder -m "not root" --cov --cov-report= "$@" || results=$?
.venv/bin/coverage json --quiet -o .coverage.json
.venv/bin/python - .coverage.json <<'PROGRAM'
import collections
import json
import sys

with open(sys.argv[1]) as report:
    files = json.load(report)["files"]
covered, total = collections.Counter(), collections.Counter()
for path, file in files.items():
    package = "/".join(path.split("/")[1:-1]) or "site_builder"
    counts = file["summary"]
    covered[package] += counts["covered_lines"] + counts["covered_branches"]
    total[package] += counts["num_statements"] + counts["num_branches"]
for package in sorted(total):
    if total[package]:
        print(f"| `{package}` | {total[package]} | {100 * covered[package] / total[package]:.1f} % |")
print(f"| all | {sum(total.values())} | {100 * sum(covered.values()) / sum(total.values()):.1f} % |")
low = [(file["summary"]["percent_covered"], path) for path, file in files.items() if file["summary"]["percent_covered"] < 90]
for percent, path in sorted(low):
    print(f"below 90 %: {path} {percent:.0f} %")
PROGRAM
exit "$results"
