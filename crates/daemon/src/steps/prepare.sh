# prepare REPOSITORY STORY BRANCH BASE WORKTREE PATTERNS [SETUP...]
# Branch and worktree of a story: made, or found and used again.
story=$2 branch=$3 base=$4 patterns=$6
lock_reason="kennel: story $story"
open_repository "$1" "$2"
find_base "$base"
make_directory "$notes"
make_directory "${5%/*}"
find_worktree "$5"
shift 6
made=false

# Taken away only while it holds nothing but git's own .git file, which is all that `worktree add
# --no-checkout` puts there.
undo_half_made() {
    set -- "$path"/* "$path"/.[!.]* "$path"/..?*
    for e in "$@"; do
        if [ "$e" != "$path/.git" ] && { [ -e "$e" ] || [ -L "$e" ]; }; then return 1; fi
    done
    rm -f "$path/.git"
    if [ -d "$path" ]; then rmdir "$path" || return 1; fi
    # By hand: a file in it that git had just begun makes every git fail that lists the worktrees.
    case $admin in "$common"/worktrees/?*) ;; *) return 1 ;; esac
    err=$(rm -rf -- "$admin" 2>&1) || fail 'failed to drop a half-made worktree' "$err"
    admin=
}
# git removes the registration of a worktree that is not there without being forced; `prune` would
# also drop those of others, whose disk may just not be mounted.
drop_registration() {
    if [ -f "$admin/locked" ]; then must 'failed to unlock the worktree' g worktree unlock "$path"; fi
    must 'failed to drop a stale registration' g worktree remove "$path"
    admin=
}

# A worktree that is an untracked directory of the checkout would make every look at it differ.
case $path in
"$repo"/*)
    [ "$bare" = true ] || case $path in "$common"/*) false ;; esac ||
        refuse inside_checkout "$path is in the git directory of $repo: put worktrees elsewhere"
    [ "$bare" = true ] || g check-ignore -q -- "$path" ||
        refuse inside_checkout "$path is inside $repo and not ignored: ignore it, or put worktrees elsewhere"
    ;;
esac

if [ -n "$admin" ] && has adding; then
    if [ ! -s "$admin/commondir" ] || ! w rev-parse -q --verify HEAD >/dev/null 2>&1 ||
        [ ! -f "$path/.git" ]; then
        undo_half_made || refuse path_taken "$path is a half-made worktree with foreign files in it"
    fi
elif [ -n "$admin" ]; then
    refuse_others_lock
    if [ ! -e "$path" ] && [ ! -L "$path" ]; then
        drop_registration
    else
        link
    fi
fi
if [ -n "$admin" ] && has removing; then
    restore_missing
fi
forget removing

if [ -z "$admin" ]; then
    if [ -L "$path" ] || { [ -e "$path" ] && ! [ -d "$path" ]; }; then
        refuse path_taken "$path is there and is no directory"
    fi
    if [ -d "$path" ] && [ -n "$(ls -A "$path")" ]; then
        refuse path_taken "$path is there, is not empty, and is no worktree of $repo: move it away; what is \
committed for the story is on $branch"
    fi
    g check-ref-format "refs/heads/$branch" || refuse branch_taken "$branch is no name for a branch"
    if g rev-parse --verify --quiet "refs/heads/$branch" >/dev/null; then
        has branch || refuse branch_taken "the branch $branch is there and is not the story's"
    else
        # Noted and not there: we were killed while git made it.
        if has branch; then drop_lock_of "refs/heads/$branch"; fi
        note branch "$branch"
        change 'failed to make the branch' g update-ref -m "kennel: story $story" \
            "refs/heads/$branch" "$base_id" '' || {
            forget branch
            case $err in
            *'cannot create'*) refuse branch_taken "no branch $branch can be made: $err" ;;
            *) fail 'failed to make the branch' "$err" ;;
            esac
        }
    fi
    forget ready
    note adding "$path"
    change 'failed to make the worktree' g worktree add --no-checkout "$path" "$branch" || case $err in
    *'already checked out at'* | *'already used by worktree'*)
        forget adding
        refuse branch_busy "the branch $branch is checked out elsewhere: $err"
        ;;
    *) fail 'failed to make the worktree' "$err" ;;
    esac
    find_worktree "$path"
    made=true
fi

if has adding; then
    # Nobody was told of this worktree, so that what is half written in it is ours.
    drop_own_locks
    must 'failed to check out the worktree' w reset -q --hard
    if ! locked_by_us; then
        if [ -f "$admin/locked" ]; then must 'failed to unlock the worktree' g worktree unlock "$path"; fi
        must 'failed to lock the worktree' g worktree lock --reason "$lock_reason" "$path"
    fi
    forget adding
fi
recover_merge
if ! on_branch; then
    found=$(cat "$admin/rebase-merge/head-name" "$admin/rebase-apply/head-name" 2>/dev/null)
    [ "$found" = "refs/heads/$branch" ] ||
        refuse wrong_branch "$path is on $(w symbolic-ref -q HEAD || printf 'no branch'), not on $branch"
fi
[ -f "$admin/locked" ] ||
    must 'failed to lock the worktree' g worktree lock --reason "$lock_reason" "$path"

# Ignored files that a list names, from the main checkout. Names come from git: relative, without "..",
# and not through links. A file is there whole or not at all, and one that is there is left alone.
copy_files() {
    if [ -f "$repo/.worktreeinclude" ]; then
        patterns=$(cat "$repo/.worktreeinclude")$newline$patterns
    fi
    case $patterns in *[![:space:]]*) ;; *) return 0 ;; esac
    err=$( {
        printf '%s\n' "$patterns" >"$notes/patterns" &&
            g ls-files --others --ignored --exclude-from="$notes/patterns" -z >"$notes/named"
    } 2>&1) || fail 'failed to list the files to copy' "$err"
    err=$(g check-ignore -z --stdin <"$notes/named" 2>&1 >"$notes/ignored")
    # 1 says that none of them is ignored.
    [ "$?" -le 1 ] || fail 'failed to list the files to copy' "$err"
    lines <"$notes/ignored" >"$notes/list" || fail 'failed to list the files to copy' 'no list'
    while IFS= read -r n; do
        n=$(printf %s "$n" | LC_ALL=C tr '\001' '\n' && printf x) && n=${n%x}
        copy_file "$n"
    done <"$notes/list"
    rm -f "$notes/patterns" "$notes/named" "$notes/ignored" "$notes/list"
}
copy_file() {
    case $1 in */) return 0 ;; esac
    to=$path/$1
    if [ -e "$to" ] || [ -L "$to" ]; then return 0; fi
    if link_above "$path" "$1"; then
        printf 'not copied, for %s is a link: %s\n' "$up" "$1" >&2
        return 0
    fi
    err=$( {
        mkdir -p "${to%/*}" && cp -pP "$repo/$1" "$to.kennel-part" && mv -f "$to.kennel-part" "$to"
    } 2>&1) || fail "failed to copy $1" "$err"
}

if ! has ready; then
    if [ "$bare" = false ]; then copy_files; fi
    run_commands setup_failed "$@"
    note ready "$branch"
fi
ask w rev-parse HEAD
answer 0 prepared "\"made\":$made,\"head\":\"$out\",\"base\":\"$base_id\",\"path\":\"$(hex_of "$path")\""
