#!/usr/bin/env bash
# Starts vLLM servers for a learner elsewhere: one per GPU or group of GPUs, or one on the CPU.
set -euo pipefail

usage() {
  cat <<'TEXT'
launch/vllm_sidecar.sh --model DIR [options]

Starts vLLM servers for a gigpo_jax learner (--config.engine.name=vllm --config.engine.urls=...), prints their
addresses and waits. Ends all of them when one ends (status 1), on Ctrl-C and on SIGTERM.

  --model DIR         the learner's model.path: a Hugging Face folder
  --weights-dir DIR   folder for new weights, shared with the learner (its engine.weights_dir);
                      default for a learner on this machine: one in memory, which the learner finds by itself
  --gpus LIST         comma-separated GPU numbers (default: all); "none" serves on the CPU
  --tensor N          GPUs of one server (default 1); GPUs / N servers, each on its own port
  --host ADDRESS      address to listen on (default 127.0.0.1)
  --port N            port of the first server (default 8000), the others follow
  --max-length N      tokens of prompt and response together (default 2560): sampling.max_prompt_tokens + max_response_tokens
  --sequences N       most sequences that a server decodes together (default 128)
  --dtype NAME        bfloat16 (default) or float32: the learner's engine.dtype
  --lora-rank N       largest rank of adapters, for a learner with model.lora.rank=N (default 0: no adapters)
  --gpu-memory-fraction X
                      of a GPU (default 0.85)
  --cache-gib N       KV cache on the CPU, GiB (default 4)
  --python FILE       interpreter of the environment that has vLLM 0.32 or 0.33 (default .venv-vllm/bin/python)
  --dry-run           print what would run and exit
  --help              this text

VLLM_API_KEY must be set, to the same value here and for the learner. Every endpoint but /health and /version requires
it. Whoever has it can pause a server, load weights from --weights-dir and call methods of its workers. Traffic is not
encrypted: keep the port in a private network.
TEXT
}

fail() {
  echo "vllm_sidecar.sh: $*" >&2
  exit 2
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
model='' weights_dir='' gpus=all tensor=1 host=127.0.0.1 port=8000 max_length=2560 sequences=128
dtype=bfloat16 lora_rank=0 gpu_memory_fraction=0.85 cache_gib=4 python=.venv-vllm/bin/python dry_run=no
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage && exit 0 ;;
    --dry-run) dry_run=yes && shift && continue ;;
    --model | --weights-dir | --gpus | --tensor | --host | --port | --max-length | --sequences | --dtype | \
      --lora-rank | --gpu-memory-fraction | --cache-gib | --python)
      [ $# -ge 2 ] || fail "$1: a value is missing"
      name=${1#--}
      printf -v "${name//-/_}" '%s' "$2"
      shift 2
      ;;
    *) fail "$1: no such option; --help lists them" ;;
  esac
done

[ -n "$model" ] || fail "--model: missing; the learner's model.path"
for number in tensor port max_length sequences cache_gib; do
  [[ ${!number} =~ ^[1-9][0-9]*$ ]] || fail "--${number//_/-} ${!number}: must be a whole number of at least 1"
done
[[ $lora_rank =~ ^(0|[1-9][0-9]*)$ ]] && [ "$lora_rank" -le 512 ] || fail "--lora-rank $lora_rank: must be a whole number from 0 to 512"
loopback=no
case $host in 127.0.0.1 | localhost | ::1) loopback=yes ;; esac
if [ -z "$weights_dir" ]; then
  [ $loopback = yes ] || fail "--weights-dir: missing; a folder shared with the learner"
  # As `local_folder` in gigpo_jax/engines/remote/weight_store.py.
  base=/dev/shm
  [ -w $base ] || base=${TMPDIR:-/tmp}
  weights_dir=$base/gigpo_jax-weights.$(id -u)
  # The learner checks whose folder it is, and servers load nothing but what it wrote.
  [ $dry_run = yes ] || [ -d "$weights_dir" ] || mkdir -m 700 "$weights_dir"
fi
if [ $dry_run = no ]; then
  [ -n "${VLLM_API_KEY:-}" ] ||
    fail "VLLM_API_KEY: not set; export a random one here and for the learner, such as \$(openssl rand -hex 24)"
  [ -f "$model/config.json" ] || fail "--model $model: no config.json there; a Hugging Face folder is needed"
  [ -x "$python" ] || fail "--python $python: not there; make vllm-venv (CPU), or python -m venv .venv-vllm && .venv-vllm/bin/pip install 'vllm>=0.32,<0.34'"
  mkdir -p "$weights_dir"
fi

if [ "$gpus" = all ]; then
  gpus=$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | paste -sd, -) || true
  [ -n "$gpus" ] || fail "--gpus all: nvidia-smi lists none; name them, or use --gpus none for the CPU"
fi

common=(-m vllm.entrypoints.openai.api_server --model "$model" --host "$host" --dtype "$dtype"
  --max-model-len "$max_length" --max-num-seqs "$sequences"
  --logprobs-mode processed_logprobs --generation-config vllm --enable-scale-out
  --hf-overrides '{"head_dtype": "float32"}'
  --worker-extension-cls gigpo_jax.engines.vllm.worker.extension.WeightLoader
  --middleware gigpo_jax.engines.access.RequireKey --disable-uvicorn-access-log)
if [ "$lora_rank" != 0 ]; then
  # vLLM accepts these ranks only. One adapter more than is sampled with: a late request must not evict the newest.
  for served_rank in 1 8 16 32 64 128 256 320 512; do [ "$served_rank" -lt "$lora_rank" ] || break; done
  common+=(--enable-lora --max-lora-rank "$served_rank" --max-cpu-loras 2)
fi
groups=()
if [ "$gpus" = none ]; then
  groups=(cpu)
  batched=$((max_length > 2048 ? max_length : 2048))
  # A request's own seed together with chunked prefill kills the engine on a CPU.
  common+=(--enforce-eager --no-enable-chunked-prefill --max-num-batched-tokens "$batched")
else
  IFS=, read -ra list <<<"$gpus"
  [ $((${#list[@]} % tensor)) = 0 ] || fail "--tensor $tensor: ${#list[@]} GPUs do not divide into groups of $tensor"
  for ((i = 0; i < ${#list[@]}; i += tensor)); do
    groups+=("$(IFS=, && echo "${list[*]:i:tensor}")")
  done
  common+=(--gpu-memory-utilization "$gpu_memory_fraction" --tensor-parallel-size "$tensor")
fi

settings=(PYTHONPATH="$here" VLLM_SERVER_DEV_MODE=1 VLLM_NO_USAGE_STATS=1 GIGPO_WEIGHTS_DIR="$weights_dir"
  VLLM_CPU_KVCACHE_SPACE="$cache_gib" VLLM_CPU_NUM_OF_RESERVED_CPU=0
  VLLM_ALLOW_RUNTIME_LORA_UPDATING="$((lora_rank > 0))")
# As MALLOC in gigpo_jax/engines/vllm/launch.py.
malloc=glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=1099511627776
[ "$gpus" != none ] || settings+=(GLIBC_TUNABLES="${GLIBC_TUNABLES:-$malloc}")
urls=()
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait' EXIT
trap 'exit 143' TERM INT
for index in "${!groups[@]}"; do
  device=()
  [ "${groups[index]}" = cpu ] || device=(CUDA_VISIBLE_DEVICES="${groups[index]}")
  this=(env "${settings[@]}" "${device[@]}" "$python" "${common[@]}" --port $((port + index)))
  urls+=("http://$([ $loopback = yes ] && echo 127.0.0.1 || echo "$host"):$((port + index))")
  if [ $dry_run = yes ]; then
    printf '%q ' "${this[@]}" && echo
  else
    "${this[@]}" &
    pids+=($!)
  fi
done
echo "learner: --config.engine.name=vllm --config.engine.urls=$(IFS=, && echo "${urls[*]}")"
[ $dry_run = no ] || exit 0
# A vLLM server whose engine died has status 0.
wait -n || true
echo "vllm_sidecar.sh: a server ended; all end" >&2
exit 1
