#!/bin/sh
# Computes pi as a sum of parts, one per second. Saves the sum after each part, and resumes from there.
set -eu

parts=${1:-10}
saved=${OUTLAST_CHECKPOINT_DIR:-./ckpt}
output=${OUTLAST_OUTPUT_DIR:-.}
mkdir -p "$saved"

part=0 sum=0
if [ -f "$saved/sum" ]; then
    read -r part sum < "$saved/sum"
fi
echo "starting at part $part of $parts"

while [ "$part" -lt "$parts" ]; do
    sum=$(awk -v part="$part" -v parts="$parts" -v sum="$sum" 'BEGIN {
        n = 100000
        for (i = int(part * n / parts); i < int((part + 1) * n / parts); i++) { x = (i + 0.5) / n; sum += 4 / (1 + x * x) / n }
        printf "%.12f", sum
    }')
    sleep 1
    part=$((part + 1))
    # Written to another file and renamed, so that a kill at any time leaves the old file or the new one.
    echo "$part $sum" > "$saved/sum.new"
    mv "$saved/sum.new" "$saved/sum"
    echo "part $part of $parts: $sum"
done

echo "{\"pi\": $sum}" > "$output/result.json"
