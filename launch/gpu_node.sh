#!/usr/bin/env bash
# One node: the learner on some GPUs, vLLM servers on the others.
set -euo pipefail

usage() {
  cat <<'TEXT'
launch/gpu_node.sh --config FILE --model DIR --learner-gpus LIST --server-gpus LIST [options] [-- CONFIG FLAGS...]

Starts vLLM servers on some GPUs of this node (launch/vllm_sidecar.sh) and the learner on the others. Ends the servers
with the learner. New weights go through memory (/dev/shm). The exit status is the learner's.

  --config FILE        the experiment, such as configs/alfworld.py:1.5b
  --model DIR          the model, a Hugging Face folder
  --learner-gpus LIST  such as 0,1,2,3
  --server-gpus LIST   such as 4,5,6,7; none of the learner's
  --tensor N           GPUs of one server (default 1)
  --workdir DIR        of the run (default runs/gpu_node)
  --port N             port of the first server (default 8000)
  --max-length N       tokens of prompt and response together, as the config says (default 2560)
  --sequences N        sequences decoded together by a server (default 128)
  --lora-rank N        train an adapter of this rank (model.lora.rank), which servers sample with (default 0: none)
  --python FILE        interpreter of the learner (default .venv/bin/python)
  --vllm-python FILE   interpreter of the servers (default .venv-vllm/bin/python)
  --dry-run            print what would run and exit
  --help               this text

Flags after -- go to the learner, such as --config.train.max_staleness=1 --config.mesh.fsdp=4.
TEXT
}

fail() {
  echo "gpu_node.sh: $*" >&2
  exit 2
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
config='' model='' learner_gpus='' server_gpus='' tensor=1 workdir=runs/gpu_node port=8000 max_length=2560 sequences=128
lora_rank=0 python=.venv/bin/python vllm_python=.venv-vllm/bin/python dry_run=no
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage && exit 0 ;;
    --dry-run) dry_run=yes && shift && continue ;;
    --) shift && break ;;
    --config | --model | --learner-gpus | --server-gpus | --tensor | --workdir | --port | --max-length | --sequences | \
      --lora-rank | --python | --vllm-python)
      [ $# -ge 2 ] || fail "$1: a value is missing"
      name=${1#--}
      printf -v "${name//-/_}" '%s' "$2"
      shift 2
      ;;
    *) fail "$1: no such option; --help lists them, flags of the learner come after --" ;;
  esac
done
for needed in config model learner_gpus server_gpus; do
  [ -n "${!needed}" ] || fail "--${needed//_/-}: missing"
done
IFS=, read -ra learners <<<"$learner_gpus"
for gpu in "${learners[@]}"; do
  [[ ,$server_gpus, != *",$gpu,"* ]] || fail "--server-gpus $server_gpus: GPU $gpu is the learner's too; use it for one of them"
done
IFS=, read -ra servers <<<"$server_gpus"
[[ $tensor =~ ^[1-9][0-9]*$ ]] && [ $((${#servers[@]} % tensor)) = 0 ] ||
  fail "--tensor $tensor: ${#servers[@]} GPUs do not divide into groups of that size"

[[ $lora_rank =~ ^(0|[1-9][0-9]*)$ ]] && [ "$lora_rank" -le 512 ] || fail "--lora-rank $lora_rank: must be a whole number from 0 to 512"
adapter=()
[ "$lora_rank" = 0 ] || adapter=(--config.model.lora.rank="$lora_rank")

urls=()
for ((i = 0; i < ${#servers[@]} / tensor; i++)); do urls+=("http://127.0.0.1:$((port + i))"); done
sidecar=("$here/launch/vllm_sidecar.sh" --model "$model" --gpus "$server_gpus"
  --tensor "$tensor" --port "$port" --max-length "$max_length" --sequences "$sequences" --python "$vllm_python"
  --lora-rank "$lora_rank")
learner=(env CUDA_VISIBLE_DEVICES="$learner_gpus" "$python" -m gigpo_jax.main --config="$config" --workdir="$workdir"
  --config.model.path="$model" --config.engine.name=vllm --config.engine.urls="$(IFS=, && echo "${urls[*]}")"
  --config.engine.connect_timeout_s=900.0 "${adapter[@]}" "$@")

if [ $dry_run = yes ]; then
  printf '%q ' "${sidecar[@]}" && echo
  "${sidecar[@]}" --dry-run
  printf '%q ' "${learner[@]}" && echo
  exit 0
fi
VLLM_API_KEY=${VLLM_API_KEY:-$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')}
export VLLM_API_KEY
mkdir -p "$workdir/servers"
"${sidecar[@]}" >"$workdir/servers/sidecar.log" 2>&1 &
sidecar_pid=$!
trap 'kill $sidecar_pid 2>/dev/null || true; wait $sidecar_pid 2>/dev/null || true' EXIT
echo "servers: log in $workdir/servers/sidecar.log"
"${learner[@]}"
