#!/usr/bin/env bash
# Installs a wheel in an empty environment and trains one iteration with it: launch/try_wheel.sh PYTHON WHEEL
set -euo pipefail
python=$1
wheel=$(realpath "$2")
max_packages=70
unset PYTHONPATH
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$python" -m venv environment
pip=(environment/bin/python -m pip --disable-pip-version-check)
"${pip[@]}" install --quiet "$wheel"
packages=$("${pip[@]}" list --format=freeze --exclude pip --exclude gigpo_jax | wc -l)
echo "$packages packages, $(du -sm environment | cut -f1) MB"
[ "$packages" -le "$max_packages" ] || { echo "more than $max_packages packages" >&2; exit 1; }
"${pip[@]}" check
sizes=(--config.train.iterations=1 --config.train.groups=4 --config.eval.tasks=4)
if environment/bin/gigpo train --config=quickstart --workdir=run "${sizes[@]}" 2>first.txt; then
  echo "no floor plans were installed: nothing should have trained" >&2
  exit 1
fi
# The last line says how to get the floor plans; that is what a user does.
install=$(sed -n 's/.*: \(pip install --no-deps alfworld==[0-9.]*\)$/\1/p' first.txt)
[ -n "$install" ] || { cat first.txt >&2; exit 1; }
# shellcheck disable=SC2086
environment/bin/python -m $install --quiet
environment/bin/gigpo train --config=quickstart --workdir=run "${sizes[@]}"
environment/bin/gigpo inspect run
