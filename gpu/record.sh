#!/bin/sh
# On a machine with a GPU: the cost of recording on the hot pair; the slow path on Nsight Systems'
# timeline, where nsys is installed; and where PyTorch is, a recording of it, and whether torch's
# own snapshot has the structure of ours. Arguments: the folder of the gpumem command, and one for
# what is made. After gpu/stage.sh: gpu/record.sh .gpu/bin .gpu/record
set -eu
bin=${1:?the folder with gpumem and libgpumem_preload.so}
out=${2:?a folder for what is made}
mkdir -p "$out"
echo "== hot pair, not recorded"
"$bin/gpumem" bench hot
rm -f "$out"/hot.gmrec*
echo "== hot pair, recorded"
GPUMEM_RECORD="$out/hot.gmrec" "$bin/gpumem" bench hot
echo "== NVTX"
if command -v nsys > /dev/null; then
    rm -f "$out"/nvtx.*
    GPUMEM_NVTX=on nsys profile -t nvtx -o "$out/nvtx" "$bin/gpumem" bench checkerboard
    nsys stats --report nvtx_sum "$out/nvtx.nsys-rep" | tee "$out/nvtx.txt"
    for range in growth stitch; do
        grep -q "gpumem:$range" "$out/nvtx.txt" || { echo "no range gpumem:$range"; exit 1; }
    done
else
    echo "skipped: nsys is not installed"
fi
echo "== PyTorch"
if ! python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    echo "skipped: PyTorch with CUDA is not installed"
    exit 0
fi
rm -f "$out"/torch.gmrec*
"$bin/gpumem" run --torch --record "$out/torch.gmrec" -- python3 -c '
import torch
a = [torch.empty(1 << (12 + i % 12), device="cuda") for i in range(200)]
del a[::2]
torch.cuda.synchronize()
'
"$bin/gpumem" stats "$out/torch.gmrec"
"$bin/gpumem" view "$out/torch.gmrec" --out "$out/torch.html"
"$bin/gpumem" record convert --to torch-snapshot --out "$out/ours.pickle" "$out/torch.gmrec"
python3 - "$out/ours.pickle" <<'PYTHON'
import pickle, sys, torch
torch.cuda.memory._record_memory_history()
x = [torch.empty(1 << 20, device="cuda") for _ in range(4)]
del x[0]
theirs = torch.cuda.memory._snapshot()
ours = pickle.load(open(sys.argv[1], "rb"))
missing = set(theirs) - set(ours)
def keys(s, *path):
    for p in path:
        s = next((v for v in s[p] if v), {}) if isinstance(p, str) else s
    return set(s)
print("top level, theirs and not ours:", missing or "nothing")
for what in ("segments",):
    print("segments:", keys(theirs, "segments") - keys(ours, "segments") or "nothing missing")
theirs_block, ours_block = theirs["segments"][0]["blocks"][0], ours["segments"][0]["blocks"][0]
print("blocks:", set(theirs_block) - set(ours_block) or "nothing missing")
entry = lambda s: set(next(e for t in s["device_traces"] for e in t))
print("trace entries:", entry(theirs) - entry(ours) or "nothing missing")
PYTHON
