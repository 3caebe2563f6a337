# look REPOSITORY STORY PREFIX BASE WORKTREE
# How a story's worktree stands, and a fingerprint of the main checkout. Changes nothing.
prefix=$3 base=$4
open_repository "$1" "$2"
find_base "$base"
find_worktree "$5"

hash() { g hash-object --stdin; }
# Before all else: whoever undoes a landing takes its note away last.
landing=false
for l in "$common"/kennel/*/landing; do if [ -f "$l" ]; then landing=true; fi; done

worktree=null
if [ -n "$admin" ] && [ -d "$path" ]; then
    ask w rev-parse HEAD
    head=$out
    on=$(w symbolic-ref -q HEAD) || on=
    ask_status
    untracked=$(printf '%s\n' "$out" | grep -c '^??')
    changed=$(printf '%s\n' "$out" | grep -c '^[^?]')
    ask w ls-files -u
    unmerged=$(printf %s "${out:+$out$newline}" | cut -f 2 | sort -u | wc -l)
    unmerged=$((unmerged))
    ask g rev-list --left-right --count "$base_id...$head"
    behind=${out%%[!0-9]*} ahead=${out##*[!0-9]}
    locks=$(for l in "$admin"/*.lock; do if [ -e "$l" ]; then printf '%s\n' "${l##*/}"; fi; done | hex)
    worktree="{\"head\":\"$head\",\"branch\":\"$(hex_of "${on#refs/heads/}")\",\"changed\":$changed"
    worktree="$worktree,\"untracked\":$untracked,\"unmerged\":$unmerged,\"ahead\":$ahead"
    worktree="$worktree,\"behind\":$behind,\"operation\":\"$(operation_in "$admin")\",\"locks\":\"$locks\"}"
fi

# What files hold that git does not know. Links and devices are not followed.
contents() {
    g ls-files --others --exclude-standard -z | lines | while IFS= read -r n; do
        n=$(printf %s "$n" | LC_ALL=C tr '\001' '\n' && printf x) && n=${n%x}
        if [ -L "$n" ]; then
            printf 'link %s\n' "$n" && ls -ld "./$n"
        elif [ -f "$n" ]; then
            printf 'file %s\n' "$n" && cksum <"./$n"
        fi
    done 2>/dev/null
}

head=$(g rev-parse -q --verify HEAD) || head=
main="\"head\":\"$head\",\"branch\":\"$(hex_of "$(g symbolic-ref -q HEAD)")\""
main="$main,\"stash\":$(g rev-list -g --count refs/stash -- 2>/dev/null || printf 0)"
# The branches of stories move by design. The base is told of by itself, for it moves when we land.
ask g for-each-ref --format='%(objectname) %(refname)' refs/heads
branches=$(printf '%s\n' "$out" |
    awk -v p="refs/heads/$prefix" -v b="refs/heads/$base" 'index($2, p) != 1 && $2 != b' | hash)
main="$main,\"branches\":\"$branches\""
if [ "$bare" = true ]; then
    files='"index":"","status":"","contents":""'
else
    files="\"index\":\"$(g ls-files -s -z | hash)\""
    s=$(g status --porcelain=v2 -z --untracked-files=all --ignore-submodules=none | hash)
    c=$( { g diff-files -p --binary --no-ext-diff --no-textconv && contents; } | hash)
    files="$files,\"status\":\"$s\",\"contents\":\"$c\""
fi
answer 0 looked "\"landing\":$landing,\"base\":\"$base_id\",\"worktree\":$worktree,\"main\":{$main,$files}"
