#!/usr/bin/env bash
# An engine server on a TPU VM of one host, for a learner on another slice.
set -euo pipefail

usage() {
  cat <<'TEXT'
launch/tpu_engine.sh --name TPU --zone ZONE --config FILE [options] [-- CONFIG FLAGS...]

Runs gigpo engine on a TPU VM of one host, through gcloud, and prints the learner's flag. Give it the learner's config and
flags of model, lengths and dtype; its mesh and engine settings are independent. Weights come over HTTP.

  --name TPU        name of the TPU VM
  --zone ZONE       its zone
  --project NAME    its project (default: gcloud's)
  --config FILE     the learner's experiment, such as configs/alfworld.py:7b
  --host ADDRESS    address of the VM in the private network, which the learner reaches (default: the VM alone)
  --port N          port (default 8000)
  --folder DIR      this repository on the VM (default gigpo_jax)
  --key-file FILE   file on the VM that holds the key (default ~/.gigpo_key)
  --dry-run         print what would run and exit
  --help            this text

Flags after -- go to the server, such as --config.engine.tensor=4, which splits a model over 4 chips.
Traffic is not encrypted: keep the port in a private network.
TEXT
}

fail() {
  echo "tpu_engine.sh: $*" >&2
  exit 2
}

name='' zone='' project='' config='' host=127.0.0.1 port=8000 folder=gigpo_jax dry_run=no
# shellcheck disable=SC2088  # the VM's shell expands it
key_file='~/.gigpo_key'
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage && exit 0 ;;
    --dry-run) dry_run=yes && shift && continue ;;
    --) shift && break ;;
    --name | --zone | --project | --config | --host | --port | --folder | --key-file)
      [ $# -ge 2 ] || fail "$1: a value is missing"
      option=${1#--}
      printf -v "${option//-/_}" '%s' "$2"
      shift 2
      ;;
    *) fail "$1: no such option; --help lists them, flags of the server come after --" ;;
  esac
done
for needed in name zone config; do
  [ -n "${!needed}" ] || fail "--$needed: missing"
done
[[ $port =~ ^[1-9][0-9]*$ ]] || fail "--port $port: must be a whole number of at least 1"

server=(.venv/bin/python -m gigpo_jax engine --config="$config" --config.serve.host="$host" --config.serve.port="$port" "$@")
printf -v quoted '%q ' "${server[@]}"
printf -v where '%q' "$folder"
remote=(gcloud compute tpus tpu-vm ssh "$name" --zone "$zone" --worker=0)
[ -z "$project" ] || remote+=(--project "$project")
# The key is read there, so it is on no command line.
remote+=(--command "cd $where && export GIGPO_API_KEY=\$(cat $key_file) && $quoted")
echo "learner: --engine-urls http://$host:$port"
if [ $dry_run = yes ]; then
  printf '%q ' "${remote[@]}" && echo
else
  exec "${remote[@]}"
fi
