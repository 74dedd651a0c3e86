#!/bin/bash
# Exports four kernels, builds their examples and runs them: on a machine with a GPU, in the root of the repository.
# `on_gpu.sh FOLDER TARGET PYTHON`; folders that exist are not exported again, so they can be made elsewhere.
cd "$(dirname "$0")/../.."
to=${1:-/tmp/on_gpu}; target=${2:-sm_90a}; python=${3:-python3}
nvcc=$(command -v nvcc) && nvcc=$(dirname "$(readlink -f "$nvcc")")/../include
h=tests/exporter/headers
for x in /usr/include /usr/local/cuda*/include $nvcc; do [ -f "$x/cuda.h" ] && h=$x; done
lib=$(ldconfig -p | awk '/libcuda\.so\.1 .*64/ { print $NF; exit }')
[ -n "$lib" ] || lib=$(find / -name libcuda.so.1 -not -path '/proc/*' 2>/dev/null | head -1)
echo "cuda.h in $h, driver $lib"
try() {
    n=$1; shift; d=$to/$n
    [ -f $d/example.c ] || $python -m convsmith.cli.main export "$@" --target $target --name $n -o $d >$d.log 2>&1 ||
        { echo "$n: not exported: $(tail -1 $d.log)"; return; }
    gcc -O2 -w -I"$h" $d/example.c "$lib" -lm -o $d/example && (cd $d && timeout 120 ./example; echo "$n: status $?")
}
mkdir -p $to; a="--stag=axb --dtag=axb"
try bf16 --dt=bf16 $a mb4ic128ih28oc128kh3ph1
try f32 $a mb4ic64ih28oc64kh3ph1
try weights --dir=BWD_WB --dt=bf16 $a mb32ic64ih14oc64kh3ph1
try int8 --dt=s8:s8:s8 $a --attr-scales=dst:common:8 mb4ic64ih28oc64kh3ph1
