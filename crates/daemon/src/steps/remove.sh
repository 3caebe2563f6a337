# remove REPOSITORY STORY BRANCH BASE WORKTREE SAVED [TEARDOWN...]
# Takes the worktree away if nothing is lost by it: all of it is in the base, or in SAVED (a ref, or
# empty). The caller knows that nobody is in it. git is never told to force.
story=$2 branch=$3 base=$4 saved=$6
lock_reason="kennel: story $story"
open_repository "$1" "$2"
find_base "$base"
make_directory "$notes"
recover_landing "$base"
find_worktree "$5"
shift 6

finish() {
    kept=true
    tip=$(g rev-parse -q --verify "refs/heads/$branch") || kept=false
    if has removing; then drop_lock_of "refs/heads/$branch"; fi
    # The old value is compared by git: a branch that moves meanwhile stays.
    if [ "$kept" = true ] && has branch && is_in "$tip" "$base_id" &&
        ! is_checked_out &&
        change 'failed to delete the branch' g update-ref -d "refs/heads/$branch" "$tip"; then
        kept=false
    fi
    [ "$kept" = true ] || forget branch
    forget ready
    forget adding
    forget removing
    answer 0 removed "\"branch_kept\":$kept"
}
is_checked_out() {
    ask g worktree list --porcelain
    case $newline$out$newline in *"${newline}branch refs/heads/$branch$newline"*) ;; *) return 1 ;; esac
}
# Sees that everything is in the base or in $saved.
check_kept() {
    operation=$(operation_in "$admin")
    ask w rev-parse HEAD
    head=$out
    if [ "$operation" = none ] && is_clean && is_in "$head" "$base_id"; then return; fi
    if [ -z "$saved" ]; then
        [ "$operation" = none ] || refuse in_progress "$path is in the middle of: $operation"
        is_clean || refuse dirty "$path has changes that are in no commit: save them first"
        refuse unmerged "$branch has commits that are not in $base: save them first"
    fi
    kept=$(g rev-parse -q --verify "$saved^{commit}") || refuse not_saved "there is no $saved"
    is_in "$head" "$kept" || refuse not_saved "$saved has not the commits of $path"
    snapshot
    [ -z "$unsaved" ] || refuse not_saved "git cannot save all of $path" "\"unsaved\":\"$unsaved\""
    # A removal that was killed has put back or taken away some files by now. Each that is there must
    # be as it was saved, or as it was committed.
    ask g diff-tree -r --name-only --diff-filter=d "$kept" "$tree"
    if [ -z "$out" ]; then return; fi
    has removing || refuse not_saved "$path has changed since $saved"
    theirs=$out
    ask g diff-tree -r --name-only --diff-filter=d "$head" "$tree"
    both=$(printf '%s\n' "$theirs" "$out" | sort | uniq -d)
    [ -z "$both" ] || refuse not_saved "$path has changed since $saved: $both"
}

if [ -z "$admin" ]; then
    if [ -e "$path" ] || [ -L "$path" ]; then refuse path_taken "$path is no worktree of $repo"; fi
    finish
fi
refuse_others_lock
if [ -d "$path" ]; then
    if has removing; then
        link
        restore_missing
    else
        [ -f "$path/.git" ] || refuse worktree_gone "$path has lost its .git file: prepare the story again"
    fi
    recover_merge
    check_kept
    if [ "$#" -gt 0 ]; then
        run_commands teardown_failed "$@"
        check_kept
    fi
    note removing "$saved"
    w rebase --quit >/dev/null 2>&1
    must 'failed to remove the worktree' w reset -q --hard
    if [ -n "$saved" ]; then must 'failed to remove the worktree' w clean -q -f -d; fi
fi
if [ -f "$admin/locked" ]; then must 'failed to unlock the worktree' g worktree unlock "$path"; fi
change 'failed to remove the worktree' g worktree remove "$path" || {
    what=$err
    forget removing
    g worktree lock --reason "$lock_reason" "$path" >/dev/null 2>&1
    case $what in
    *'contains modified or untracked'* | *submodules*) refuse dirty "$path: $what" ;;
    *) fail 'failed to remove the worktree' "$what" ;;
    esac
}
finish
