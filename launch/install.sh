#!/usr/bin/env bash
# Installs this project with the pinned packages of the tests.
set -euo pipefail

usage() {
  cat <<'TEXT'
launch/install.sh --platform cpu|gpu|tpu --python FILE [options]

Installs what the project needs into a Python environment, in the versions of launch/hashes, then the project itself.
make does this for .venv, launch/Dockerfile for an image, launch/skypilot.yaml on every node.

  --platform NAME   cpu, gpu (CUDA 13) or tpu
  --python FILE     interpreter of the environment, Python 3.11 or newer
  --requirements FILE
                    a file in place of requirements.txt that needs more, such as requirements-dev.txt
  --require-hashes  refuse every file whose SHA-256 is not in launch/hashes (those of PyPI)
  --dry-run         print what would run and exit
  --help            this text
TEXT
}

fail() {
  echo "install.sh: $*" >&2
  exit 2
}

platform='' python='' requirements='' dry_run=no require_hashes=no
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage && exit 0 ;;
    --dry-run) dry_run=yes && shift && continue ;;
    --require-hashes) require_hashes=yes && shift && continue ;;
    --platform | --python | --requirements)
      [ $# -ge 2 ] || fail "$1: a value is missing"
      printf -v "${1#--}" '%s' "$2"
      shift 2
      ;;
    *) fail "$1: no such option; --help lists them" ;;
  esac
done
[ -n "$python" ] || fail "--python: missing"
case $platform in
  cpu) accelerator=() ;;
  gpu) accelerator=('jax[cuda13]') ;;
  tpu) accelerator=('jax[tpu]') ;;
  *) fail "--platform '$platform': must be cpu, gpu or tpu" ;;
esac

[ $require_hashes = no ] || [ -z "$requirements" ] || fail "--requirements $requirements: not with --require-hashes"

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
run() {
  if [ $dry_run = yes ]; then printf '%q ' "$@" && echo; elif [ -t 2 ]; then spin "$@"; else "$@"; fi
}
# A terminal shows one line while a command runs, and then what the command says of errors.
spin() {
  "$@" &
  local pid=$! signs='-+*+' turn=0
  # Jobs in the background do not get Ctrl-C.
  trap 'kill "$pid" 2>/dev/null; echo >&2; exit 130' INT TERM
  while kill -0 "$pid" 2>/dev/null; do
    printf '\rinstalling %s %d s' "${signs:turn++ % 4:1}" "$SECONDS" >&2
    sleep 0.5
  done
  trap - INT TERM
  printf '\r\033[K' >&2
  wait "$pid"
}
pip=("$python" -m pip install --quiet --disable-pip-version-check)
if [ $require_hashes = yes ]; then
  run "${pip[@]}" --require-hashes -r "$here/launch/hashes/$platform.txt"
  run "${pip[@]}" --require-hashes --no-deps -r "$here/launch/hashes/project.txt"
  # An isolated build would fetch setuptools without a hash; project.txt has installed it.
  run "${pip[@]}" --no-deps --no-build-isolation -e "$here"
  exit
fi
# The versions of the lock without its hashes: an index may have built the files anew.
unhash=(sed -n 's/^\([^ #].*\) \\$/\1/p' "$here/launch/hashes/$platform.txt")
if [ $dry_run = yes ]; then
  versions=versions.txt
  printf '%q ' "${unhash[@]}" && echo "> $versions"
else
  versions=$(mktemp)
  trap 'rm -f "$versions"' EXIT
  "${unhash[@]}" >"$versions"
fi
run "${pip[@]}" -c "$versions" -r "${requirements:-$here/requirements.txt}" ${accelerator[@]+"${accelerator[@]}"}
# Without what only alfworld's own engine needs: the games are made from its floor plans.
run "${pip[@]}" --no-deps alfworld==0.4.2
run "${pip[@]}" --no-deps -e "$here"
