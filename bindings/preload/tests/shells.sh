#!/usr/bin/env bash
# Shells that fork for each line: redirections, appends by several processes, pipelines, loops that
# read a file that a child reads on, here documents, and subshells. Usage: shells.sh DIR. Prints
# the same on every file system.
set -euo pipefail
cd "$1"
seq 1 500 >numbers
# The offset is shared: head and read take their lines from one description. dd reads exactly.
{
    read -r first
    dd bs=1 count=4 2>/dev/null
    read -r third
    echo "$first $third"
} <numbers
total=0
while read -r number; do
    ((number % 50 == 0)) && echo "$(sed -n "${number}p" numbers) of $(wc -l <numbers)" >>found
    total=$((total + number))
done <numbers
echo "total $total, $(wc -l <found) found, $(cksum <found)"
# Eight writers append at the same time.
for writer in 1 2 3 4 5 6 7 8; do
    for line in $(seq 25); do
        echo "writer $writer line $line" >>appended
    done &
done
wait
sort appended | cksum
# A descriptor that stays open over many children.
exec 5>kept
for line in $(seq 60); do
    echo "own $line" >&5
    (echo "child $line" >&5)
    sh -c 'echo "program $1" >&5' sh "$line"
done
exec 5>&-
cksum <kept
exec 6<>kept
read -r line <&6
echo "$line" | tr a-z A-Z
(read -r line <&6 && echo "$line")
read -r line <&6 && echo "$line"
exec 6>&-
cat <<HERE >here
$(tail -n 2 numbers)
$(grep -c 'own' kept)
HERE
cat here
find . -type f -print0 | sort -z | xargs -0 -n 1 -P 4 wc -c | sort -k 2
tee copy1 copy2 <numbers | cksum
cmp copy1 numbers && cmp copy2 numbers
: >numbers && [[ ! -s numbers ]]
seq 20000 | split -b 3000 - part.
cat part.* | cksum
