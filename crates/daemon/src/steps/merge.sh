# merge REPOSITORY STORY BRANCH BASE WORKTREE MODE
# The story's branch onto the base (rebase), or the base into the branch (merge), in the worktree.
story=$2 branch=$3 base=$4 mode=$6
lock_reason="kennel: story $story"
open_repository "$1" "$2"
find_base "$base"
make_directory "$notes"
recover_landing "$base"
find_worktree "$5"
if [ -z "$admin" ] || [ ! -d "$path" ]; then refuse worktree_gone "there is no worktree at $path"; fi
refuse_others_lock
recover_merge
operation=$(operation_in "$admin")
[ "$operation" = none ] || refuse in_progress "$path is in the middle of: $operation"
on_branch || refuse wrong_branch "$path is not on $branch"
is_clean || refuse dirty "$path has changes that are in no commit"
ask w rev-parse HEAD
before=$out
ask g rev-list --count "$base_id..$before"
[ "$out" -gt 0 ] || refuse nothing_ahead "$branch has no commit that $base has not"

identify
note merging "$before $base_id"
case $mode in
rebase) change 'failed to rebase' w rebase "$base_id" ;;
merge) change 'failed to merge' w merge -q --no-edit -m "Merge $base into $branch" "$base_id" ;;
esac
code=$?
said=$err
if [ "$code" -ne 0 ]; then
    files=$(w -c core.quotePath=false diff --name-only --diff-filter=U | hex)
    text=$( {
        printf '%s\n' "$said"
        w diff --no-ext-diff --no-textconv
    } | LC_ALL=C dd bs=1 count="$TEXT_BYTES" 2>/dev/null | hex)
    w "$mode" --abort >/dev/null 2>&1
    recover_merge
    [ -n "$files" ] || fail "failed to $mode" "$said"
    answer 10 conflict "\"base\":\"$base_id\",\"files\":\"$files\",\"text\":\"$text\""
fi
forget merging
ask w rev-parse HEAD
head=$out
ask g rev-list --count "$base_id..$head"
answer 0 merged "\"head\":\"$head\",\"base\":\"$base_id\",\"commits\":$out"
