#!/usr/bin/env bash
# Tests for a machine with an NVIDIA GPU. Requires only this folder, the driver and NVRTC.
#
#   ./run.sh                           doctor, verify, chains, sampling, allocations, bench
#   ./run.sh verify                    one of them
#   ./run.sh bench llama-8b:Q4_K_M     shapes to measure; the files are generated
#   ./run.sh ends llama-1b:Q4_0        time of a chain that stops at its second token
#   ./run.sh sanitize [NAME...]        compute-sanitizer with every architecture, or with these models; many times slower
#
# DEVICE=cpu tests the script itself on a machine without a GPU. Logs are in logs/, generated models in made/.
set -u
cd "$(dirname "$0")"
device=${DEVICE:-cuda}
passed=0 failed=0
mkdir -p logs made

# attempt NAME COMMAND...: prints the result; the output is in the log, and its end is printed if the command failed.
attempt() {
  local log="logs/${1// /_}.log"
  if "${@:2}" >"$log" 2>&1; then
    passed=$((passed + 1))
    echo "ok      $1"
  else
    failed=$((failed + 1))
    echo "FAILED  $1"
    tail -n 25 "$log" | sed 's/^/        /'
  fi
}

made() { # PRESET TYPE
  local file="made/$1-$2.gguf"
  [ -f "$file" ] || ./akunu synth "$1" "$file" -q "$2" >/dev/null 2>&1 || return 1
  echo "$file"
}

verify() {
  local model type bits
  attempt "verify embedded" ./akunu verify --device "$device"
  for model in models/*; do
    attempt "verify $(basename "$model")" ./akunu verify "$model" --device "$device"
    attempt "verify $(basename "$model") in 33 rows, unfused" ./akunu verify "$model" --device "$device" --tokens 33 --unfused
    # More than 64 rows take the library's products.
    attempt "verify $(basename "$model") in 70 rows" ./akunu verify "$model" --device "$device" --tokens 70
  done
  for type in F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K \
    IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_M IQ3_XXS IQ3_S IQ4_NL IQ4_XS MXFP4; do
    [ -f "made/tiny-$type.gguf" ] || ./akunu synth tiny "made/tiny-$type.gguf" -q "$type" --pure >/dev/null 2>&1
    attempt "verify tiny $type" ./akunu verify "made/tiny-$type.gguf" --device "$device"
    attempt "verify tiny $type in 20 rows" ./akunu verify "made/tiny-$type.gguf" --device "$device" --tokens 20
  done
  for bits in 2 3 4 5 6 8; do
    [ -d "made/tiny-mlx-$bits" ] || ./akunu synth tiny "made/tiny-mlx-$bits" --mlx "$bits" >/dev/null 2>&1
    attempt "verify tiny mlx $bits" ./akunu verify "made/tiny-mlx-$bits" --device "$device" --tokens 20
  done
  for type in f32 q8_0; do
    attempt "verify embedded kv $type" ./akunu verify --device "$device" --kv-type "$type" --tokens 20
  done
}

# Graphs with overlapping launches must give the same result as commands that run one by one. (The story on the CPU may differ at a
# name, where two tokens have nearly the same probability.)
same_story() { # PROMPT
  local linked alone
  linked=$(./akunu run --device "$device" --temp 0 -n 200 -q "$1") || return 1
  alone=$(AKUNU_CUDA=checked ./akunu run --device "$device" --temp 0 -n 200 -q "$1") || return 1
  printf 'linked: %s\n\none by one: %s\n' "$linked" "$alone"
  [ "$linked" = "$alone" ]
}

chains() {
  attempt "chains" same_story "Once upon a time"
  attempt "chains, from a longer prompt" same_story \
    "One day a little girl named Lily went to the park with her dog. The dog saw a big red ball and"
}

# A separate program compares the kernel with the definition for random settings, and texts sampled on the GPU with texts sampled on
# the host. On the CPU the host always samples.
sampling() {
  attempt "sampling" env AKUNU_TEST_DEVICE="${device/cpu/reference}" ./engine device_sampling:: --test-threads 1
}

# A separate program checks that after a warm-up tokens allocate no memory, neither on the host nor on the GPU.
allocations() {
  attempt "allocations" env AKUNU_TEST_DEVICE="$device" ./zero_alloc
  cat logs/allocations.log
}

# clean TOOL COMMAND...: the tool must report that it found no errors, since it may not have run at all. racecheck breaks kernels of
# cuBLASLt, so it gets the engine's own.
clean() {
  local log without=none
  [ "$1" = racecheck ] && without=noblas
  log=$(AKUNU_CUDA=${without#none} "$sanitizer" --tool "$1" --error-exitcode 9 "${@:2}" 2>&1)
  local code=$?
  echo "$log"
  [ "$code" = 0 ] && grep -q -e 'ERROR SUMMARY: 0 errors' -e 'RACECHECK SUMMARY: 0 hazards' <<<"$log"
}

# Covers products in half precision (70 rows), a prompt of 9 rows, and single rows.
sanitize() {
  local model name tool run
  sanitizer=$(PATH="$PATH:/usr/local/cuda/bin" command -v compute-sanitizer) || {
    failed=$((failed + 1))
    echo "FAILED  compute-sanitizer is neither in PATH nor in /usr/local/cuda/bin"
    return
  }
  for model in "" models/*; do
    name=$(basename "${model:-embedded}")
    [ $# = 0 ] || [[ " $* " = *" $name "* ]] || continue
    run=(./akunu run ${model:+"$model"} --device "$device" --prompt-ids 3,4,5,6,7,8,9,10,11 --ids -n 6 --ignore-eos -c 128)
    for tool in memcheck racecheck; do
      attempt "$tool $name" clean "$tool" ./akunu verify ${model:+"$model"} --device "$device" --tokens 70
      attempt "$tool $name greedy" clean "$tool" "${run[@]}" --temp 0
      attempt "$tool $name sampled" clean "$tool" "${run[@]}" --temp 0.9 --top-k 40 --top-p 0.9 --repeat-penalty 1.1 --seed 1
    done
  done
}

bench() {
  local shape file
  for shape in "${@:-llama-1b:Q4_0}"; do
    file=$(made "${shape%%:*}" "${shape##*:}") || { echo "FAILED  making $shape"; failed=$((failed + 1)); continue; }
    attempt "bench $shape" ./akunu bench "$file" --device "$device" -p 512,2048 -n 128
    attempt "profile $shape" ./akunu profile "$file" --device "$device"
    attempt "profile $shape of 512 rows" ./akunu profile "$file" --device "$device" -p 512
    cat "logs/bench_$shape.log" "logs/profile_$shape.log" "logs/profile_${shape}_of_512_rows.log"
  done
}

ends() {
  local shape file
  for shape in "${@:-llama-1b:Q4_0}"; do
    file=$(made "${shape%%:*}" "${shape##*:}") || { echo "FAILED  making $shape"; failed=$((failed + 1)); continue; }
    attempt "end of a chain $shape" ./chain_end "$device" "$file"
    cat "logs/end_of_a_chain_$shape.log"
  done
}

./akunu doctor
case ${1:-all} in
  all) verify; chains; sampling; allocations; bench ;;
  verify | chains | sampling | allocations) "$1" ;;
  bench | ends | sanitize) "$1" "${@:2}" ;;
  *) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
