#!/usr/bin/env bash
# The learner on every host of a TPU pod slice; rollouts in process, or from servers elsewhere.
set -euo pipefail

usage() {
  cat <<'TEXT'
launch/tpu_pod.sh --name TPU --zone ZONE --config FILE --workdir DIR [options] [-- CONFIG FLAGS...]

Runs the same command on every host of a TPU pod slice, through gcloud (jax.distributed connects the hosts).

  --name TPU        name of the TPU VM
  --zone ZONE       its zone
  --project NAME    its project (default: gcloud's)
  --config FILE     the experiment, such as configs/alfworld.py:7b
  --workdir DIR     of the run, on storage that all hosts share
  --folder DIR      this repository on every host (default gigpo_jax)
  --urls LIST       vLLM servers, http://A:8000,http://B:8000; each belongs to one host, each host needs one.
                    Without --urls and --engine-urls the hosts sample in process.
  --weights-dir DIR for --urls: the folder that hosts and servers share
  --engine-urls LIST
                    engine servers (launch/tpu_engine.sh) in place of vLLM's, likewise one or more for each host
  --key-file FILE   for servers: a file on every host that holds their key (default ~/.gigpo_vllm_key, ~/.gigpo_key)
  --dry-run         print what would run and exit
  --help            this text

Flags after -- go to the learner, such as --config.mesh.fsdp=16.
TEXT
}

fail() {
  echo "tpu_pod.sh: $*" >&2
  exit 2
}

name='' zone='' project='' config='' workdir='' folder=gigpo_jax urls='' engine_urls='' weights_dir='' key_file='' dry_run=no
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage && exit 0 ;;
    --dry-run) dry_run=yes && shift && continue ;;
    --) shift && break ;;
    --name | --zone | --project | --config | --workdir | --folder | --urls | --engine-urls | --weights-dir | --key-file)
      [ $# -ge 2 ] || fail "$1: a value is missing"
      option=${1#--}
      printf -v "${option//-/_}" '%s' "$2"
      shift 2
      ;;
    *) fail "$1: no such option; --help lists them, flags of the learner come after --" ;;
  esac
done
for needed in name zone config workdir; do
  [ -n "${!needed}" ] || fail "--$needed: missing"
done
[ -z "$urls" ] || [ -n "$weights_dir" ] || fail "--weights-dir: missing; --urls needs a folder shared by hosts and servers"

[ -z "$urls" ] || [ -z "$engine_urls" ] || fail "--engine-urls: not beside --urls; name servers of one kind"

learner=(.venv/bin/python -m gigpo_jax.main --config="$config" --workdir="$workdir" --config.distributed=True)
before=''
if [ -n "$urls" ]; then
  learner+=(--config.engine.name=vllm --config.engine.urls="$urls" --config.engine.weights_dir="$weights_dir")
  # Read there, so the key is on no command line. The hosts' shells expand ~.
  before="export VLLM_API_KEY=\$(cat ${key_file:-~/.gigpo_vllm_key}) && "
elif [ -n "$engine_urls" ]; then
  learner+=(--config.engine.name=jax_server --config.engine.urls="$engine_urls")
  before="export GIGPO_API_KEY=\$(cat ${key_file:-~/.gigpo_key}) && "
fi
learner+=("$@")
printf -v quoted '%q ' "${learner[@]}"
printf -v where '%q' "$folder"
remote=(gcloud compute tpus tpu-vm ssh "$name" --zone "$zone" --worker=all)
[ -z "$project" ] || remote+=(--project "$project")
remote+=(--command "cd $where && $before$quoted")
if [ $dry_run = yes ]; then
  printf '%q ' "${remote[@]}" && echo
else
  exec "${remote[@]}"
fi
