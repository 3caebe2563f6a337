# save REPOSITORY STORY BRANCH BASE WORKTREE NAME SECONDS
# Keeps what is not in the base under refs/kennel/saved/STORY/NAME. SECONDS is the time NAME says, so
# that a second try makes the same commit again.
story=$2 branch=$3 base=$4
open_repository "$1" "$2"
find_base "$base"
make_directory "$notes"
find_worktree "$5"
ref=refs/kennel/saved/$story/$6
GIT_AUTHOR_DATE="@$7 +0000" GIT_COMMITTER_DATE="@$7 +0000"
export GIT_AUTHOR_DATE GIT_COMMITTER_DATE
if [ -z "$admin" ] || [ ! -d "$path" ]; then refuse worktree_gone "there is no worktree at $path"; fi
# What a killed removal took away is nobody's deletion.
if has removing; then restore_missing; fi

ask w rev-parse HEAD
head=$out
snapshot
ask g rev-parse "$head^{tree}"
head_tree=$out
# Where the work may be: HEAD, the branch, and the branch as it was before a rebase that goes on.
tips=
for tip in "$head" "$(g rev-parse -q --verify "refs/heads/$branch")" \
    "$(cat "$admin/rebase-merge/orig-head" "$admin/rebase-apply/orig-head" 2>/dev/null)"; do
    case " $tips " in *" $tip "*) continue ;; esac
    if [ -n "$tip" ] && { [ "$tip" = "$head" ] || ! is_in "$tip" "$base_id"; }; then
        tips="$tips${tips:+ }$tip"
    fi
done
if [ "$index_tree" = "$tree" ] || [ "$index_tree" = "$head_tree" ]; then index_tree=; fi
dirty=true
if [ "$tree" = "$head_tree" ] && [ -z "$index_tree" ]; then dirty=false; fi
if [ "$dirty" = false ] && [ "$tips" = "$head" ] && is_in "$head" "$base_id"; then
    [ -z "$unsaved" ] || refuse not_saved "git cannot save these" "\"unsaved\":\"$unsaved\""
    answer 0 nothing_to_save
fi

commit() {
    message=$1
    shift
    commit=$(printf '%s\n' "$message" | g -c commit.gpgSign=false commit-tree "$@" 2>/dev/null) || {
        err=$(printf '%s\n' "$message" | g -c commit.gpgSign=false commit-tree "$@" 2>&1)
        fail 'failed to save' "$err"
    }
}
identify
commit=$head
if [ "$dirty" = true ] || [ "$tips" != "$head" ]; then
    parents=
    for tip in $tips; do parents="$parents -p $tip"; done
    if [ -n "$index_tree" ]; then
        commit "what was staged for story $story" "$index_tree" -p "$head"
        parents="$parents -p $commit"
    fi
    # shellcheck disable=SC2086
    commit "work of story $story, saved by kennel" "$tree" $parents
fi
# A name that is taken by other work is not given away: the next one is used.
n=1 at=$ref
drop_lock_of "$at"
until change 'failed to save' g update-ref -m "kennel: saved story $story" "$at" "$commit" ''; do
    there=$(g rev-parse -q --verify "$at") || fail 'failed to save' "$err"
    [ "$there" != "$commit" ] || break
    n=$((n + 1)) at=$ref-$n
    [ "$n" -le "$SAME_SECOND" ] || fail 'failed to save' "$err"
done
ask g rev-list --count "$commit" "^$base_id"
answer 0 saved "\"ref\":\"$at\",\"commit\":\"$commit\",\"dirty\":$dirty,\"commits\":$out,\"unsaved\":\"$unsaved\""
