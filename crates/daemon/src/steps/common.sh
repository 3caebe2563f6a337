# What all steps share. Rust puts the bounds (LOCK_TRIES, LOCK_PAUSE, TEXT_BYTES) before this text and
# one step's own script behind it; lines of comment alone are left out, so none is inside a quote.
#
# Every script says exactly one line on standard output, its last act: `kennel-step: {...}`. Texts and
# file names in it are in hexadecimal, so that no byte of theirs has a meaning there. All else that is
# printed, by git or by a user's command, goes to standard error. Exit code 0: done; 10: refused, by name.
#
# Every script may be killed between any two commands, or inside one, and run again. What it was about to
# do is in a note below $common/kennel/STORY/ before it is done:
#   branch     the story's branch was made by us
#   adding     the worktree is being made; nobody was told of it yet
#   ready      files are copied and setup has succeeded
#   merging    a rebase or merge of ours is under way: "BEFORE ONTO"
#   landing    the checkout that has the base is being moved: "OLD NEW"
#   removing   all was checked, the worktree is being taken away

set -u
common=/ path=
# The caller's idea of a repository must not reach ours. Variables with configuration stay: they may
# hold the user's name or what is safe.
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_COMMON_DIR GIT_OBJECT_DIRECTORY \
    GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_NAMESPACE GIT_PREFIX GIT_CEILING_DIRECTORIES \
    GIT_GRAFT_FILE GIT_SHALLOW_FILE GIT_REPLACE_REF_BASE GIT_NO_REPLACE_OBJECTS GIT_EXTERNAL_DIFF \
    GIT_DIFF_OPTS GIT_LITERAL_PATHSPECS GIT_GLOB_PATHSPECS GIT_NOGLOB_PATHSPECS \
    GIT_ICASE_PATHSPECS GIT_QUARANTINE_PATH GIT_REFLOG_ACTION GIT_ATTR_SOURCE CDPATH
newline=$(printf '\nx') && newline=${newline%x}
IFS=" 	$newline"

# A step that is to end waits for the git it has called, and ends then. Were the shell to die at once, git
# would be killed right after it, and a lock on all refs would stay.
asked_to_end() { trap "$1" HUP INT TERM; }
asked_to_end 'exit 143'

# git without hooks, questions, pager, editor or background work, in a language we can read. It does not
# hear that it is to end: a signal that comes while it makes a lock leaves that lock there, for it notes it
# a moment later.
g() (
    asked_to_end ''
    LC_ALL=C GIT_TERMINAL_PROMPT=0 GIT_PAGER=cat GIT_EDITOR=: GIT_SEQUENCE_EDITOR=: \
        GIT_OPTIONAL_LOCKS=0 command git -c core.hooksPath=/dev/null -c core.fsmonitor=false \
        -c core.quotePath=true -c core.filesRefLockTimeout=1000 -c core.packedRefsTimeout=1000 \
        -c gc.auto=0 -c maintenance.auto=false -c submodule.recurse=false -c rerere.enabled=false \
        -c rebase.autoStash=false -c rebase.updateRefs=false -c merge.autoStash=false \
        -c status.relativePaths=false -c advice.addEmbeddedRepo=false -c worktree.useRelativePaths=false \
        -c diff.external= -c color.ui=false "$@"
)

# git in the story's worktree, by the name of its git directory. Never by discovery: a worktree whose
# .git file is gone would make git find the repository around it, which is the user's own checkout.
w() {
    (asked_to_end : && cd -P -- "$path" && g --git-dir="$admin" --work-tree="$path" "$@")
}

hex() { od -An -v -tx1 | LC_ALL=C tr -d ' \n'; }
hex_of() { printf %s "$1" | hex; }

# answer CODE OUTCOME [MEMBERS]: the line, and the end.
answer() {
    printf 'kennel-step: {"outcome":"%s"%s}\n' "$2" "${3:+,$3}"
    exit "$1"
}

# refuse NAME TEXT [MEMBERS]
refuse() {
    printf '%s: %s\n' "$1" "$2" >&2
    text=$(printf %s "$2" | LC_ALL=C tail -c "$TEXT_BYTES" | hex)
    answer 10 refused "\"why\":\"$1\",\"text\":\"$text\"${3:+,$3}"
}

# Gives a failure of git, or of another command, its name.
fail() {
    case $2 in
    *'No space left on device'* | *'Disk quota exceeded'*) refuse disk_full "$1: $2" ;;
    *'dubious ownership'*) refuse unsafe_ownership "$1: $2" ;;
    *'not a git repository'*) refuse not_a_repository "$1: $2" ;;
    *'Read-only file system'*) refuse read_only "$1: $2" ;;
    *'Permission denied'* | *'insufficient permission'*) refuse permission_denied "$1: $2" ;;
    esac
    if is_lock "$2"; then refuse lock_held "$1: $2"; fi
    # git does not always say why it could not write.
    if is_full "$common" || is_full "${path:-$common}"; then
        refuse disk_full "$1: $2, and there is no room left"
    fi
    refuse git_failed "$1: $2"
}
is_full() {
    # The name of a mount may hold anything; the figures come before it.
    free=$(df -Pk "$1" 2>/dev/null |
        awk 'NR == 2 { for (i = 2; i <= NF; i++) if ($i ~ /^[0-9]+%$/) { print $(i - 1); exit } }')
    [ "${free:-$FULL_KB}" -lt "$FULL_KB" ] 2>/dev/null
}

is_lock() {
    case $1 in
    *".lock': File exists"* | *'could not lock config file'*'File exists'*) return 0 ;;
    *) return 1 ;;
    esac
}

# What passes by itself: a lock, or a worktree that another git is making at this moment, whose files
# every git reads that lists the worktrees.
is_passing() {
    is_lock "$1" && return
    case $1 in *'failed to read '*'worktrees/'*) ;; *) return 1 ;; esac
}

# change WHAT COMMAND...: a command that changes something, again while somebody holds a lock of git's.
# A lock is never broken: who holds it is not known here. Leaves the complaint in $err.
change() {
    what=$1
    shift
    tries=1
    until err=$("$@" 2>&1 </dev/null); do
        is_passing "$err" && [ "$tries" -lt "$LOCK_TRIES" ] || return 1
        tries=$((tries + 1))
        sleep "$LOCK_PAUSE"
    done
}

must() { change "$@" || fail "$1" "$err"; }

# ask COMMAND...: what a reading command prints, in $out.
ask() {
    tries=1
    until out=$("$@" 2>/dev/null </dev/null); do
        if err=$("$@" 2>&1 >/dev/null </dev/null); then err='it fails now and then'; fi
        is_passing "$err" && [ "$tries" -lt "$LOCK_TRIES" ] || fail "$*" "$err"
        tries=$((tries + 1))
        sleep "$LOCK_PAUSE"
    done
}

# note NAME TEXT: whole or not at all.
note() {
    err=$( { printf '%s\n' "$2" >"$notes/$1.new" && mv -f "$notes/$1.new" "$notes/$1"; } 2>&1) ||
        fail "failed to write the note $notes/$1" "$err"
}
has() { [ -f "$notes/$1" ]; }
forget() { rm -f "$notes/$1"; }

# open_repository REPOSITORY STORY: sets $repo, $common, $bare and $notes.
open_repository() {
    command -v git >/dev/null 2>&1 || {
        printf 'kennel-step: {"outcome":"refused","why":"git_missing","text":"%s"}\n' \
            "$(hex_of 'there is no git in PATH: install it, or give the daemon a PATH that has it')"
        exit 127
    }
    cd -P -- "$1" 2>/dev/null || refuse not_a_repository "there is no directory $1"
    repo=$(pwd -P && printf x) && repo=${repo%"${newline}x"}
    ask g rev-parse --is-bare-repository
    bare=$out
    if [ "$bare" = false ]; then
        ask g rev-parse --show-cdup
        [ -z "$out" ] || refuse not_a_repository "$repo is inside a repository: give its top, $out"
    fi
    gitdir=$(g rev-parse --git-dir && printf x) && gitdir=${gitdir%"${newline}x"}
    common=$(g rev-parse --git-common-dir && printf x) && common=${common%"${newline}x"}
    gitdir=$(cd -P -- "$gitdir" && pwd -P && printf x) && gitdir=${gitdir%"${newline}x"}
    common=$(cd -P -- "$common" && pwd -P && printf x) && common=${common%"${newline}x"}
    case $common in /*) ;; *) refuse not_a_repository "$repo has no git directory that can be entered" ;; esac
    [ "$gitdir" = "$common" ] ||
        refuse not_main_checkout "$repo is a worktree of $common: give the main checkout"
    notes=$common/kennel/$2
}
make_directory() { err=$(mkdir -p -- "$1" 2>&1) || fail "failed to make $1" "$err"; }

# find_worktree PATH: sets $path, as git writes it, and $admin, empty if it is not registered.
find_worktree() {
    parent=${1%/*} name=${1##*/}
    admin=
    # Whoever deleted it may have deleted what it was in as well; git knows it by where that was.
    until there=$(cd -P -- "${parent:-/}" 2>/dev/null && pwd -P && printf x); do
        name=${parent##*/}/$name parent=${parent%/*}
    done
    there=${there%"${newline}x"}
    path=${there%/}/$name
    for a in "$common"/worktrees/*/gitdir; do
        [ -f "$a" ] || continue
        at=$(cat "$a" && printf x) && at=${at%x} && at=${at%"$newline"}
        case $at in
        /*) ;;
        *)
            at=$(cd -P -- "${a%/gitdir}" && cd -P -- "${at%/.git}" && pwd -P && printf x) 2>/dev/null &&
                at=${at%"${newline}x"}/.git || continue
            ;;
        esac
        [ "$at" = "$path/.git" ] && admin=${a%/gitdir}
    done
}

lock_reason="kennel"
locked_by_us() { [ "$(cat "$admin/locked" 2>/dev/null)" = "$lock_reason" ]; }
refuse_others_lock() {
    if [ -f "$admin/locked" ] && ! locked_by_us; then
        refuse locked_by_other "$path is locked by somebody else: $(cat "$admin/locked")"
    fi
}

# Sets $base_id. A base is a branch of this repository.
find_base() {
    base_id=$(g rev-parse --verify --quiet "refs/heads/$1^{commit}") && return
    [ -n "$(g rev-list -n 1 --all 2>/dev/null)" ] ||
        refuse no_commits "$repo has no commit yet: make the first one"
    refuse base_gone "there is no branch $1 in $repo"
}

# link: the file that leads from the worktree to its git directory, if it was lost. Not by `git worktree
# repair`, which repairs all worktrees there are.
link() {
    [ ! -f "$path/.git" ] || return 0
    if [ -e "$path/.git" ]; then refuse path_taken "$path has become a repository of its own"; fi
    err=$( { printf 'gitdir: %s\n' "$admin" >"$path/.git"; } 2>&1) || fail "failed to link $path" "$err"
}
# drop_lock_of REF: a lock that a killed step of ours left on a ref that is the story's alone: its note
# says so.
drop_lock_of() { rm -f "$common/$1.lock"; }
# The same for those in the story's own git directory, and on its branch, which moves with HEAD.
drop_own_locks() {
    rm -f "$admin"/*.lock
    drop_lock_of "refs/heads/$branch"
}
# restore_missing: files that a killed removal took away come back; none that is there is touched.
restore_missing() {
    drop_own_locks
    w ls-files --deleted -z | w checkout-index -q -z --stdin
}

# What a worktree is in the middle of, by its git directory.
operation_in() {
    if [ -d "$1/rebase-merge" ]; then printf rebase
    elif [ -f "$1/rebase-apply/applying" ]; then printf am
    elif [ -d "$1/rebase-apply" ]; then printf rebase
    elif [ -f "$1/MERGE_HEAD" ]; then printf merge
    elif [ -f "$1/CHERRY_PICK_HEAD" ]; then printf cherry_pick
    elif [ -f "$1/REVERT_HEAD" ]; then printf revert
    elif [ -f "$1/BISECT_LOG" ]; then printf bisect
    else printf none
    fi
}

# NUL-ended names as lines; a newline in a name becomes the byte 1, and back.
lines() { LC_ALL=C tr '\n\000' '\001\n'; }
unlines() { LC_ALL=C tr '\n\001' '\000\n'; }

# What is in no commit, a line each, in $out. If git cannot tell, that is the end: a status that could
# not be read is not a clean one.
ask_status() { ask w status --porcelain --untracked-files=all --ignore-submodules=none; }
is_clean() {
    ask_status
    [ -z "$out" ]
}

# A rebase or merge of ours was killed. The worktree was clean when it began, and no agent was started
# since: every start is behind a `prepare`, which comes through here. So the branch is the truth. What is
# there is kept all the same, for a person may have been there. Then what came with the new base becomes
# known to the index, so that the way back takes it along.
recover_merge() {
    has merging || return 0
    read -r _ onto <"$notes/merging"
    drop_own_locks
    if [ "$(operation_in "$admin")" != none ] || ! is_clean || ! on_branch; then
        snapshot
        identify
        ask w rev-parse HEAD
        parent=$out
        ask w -c commit.gpgSign=false commit-tree -m "unfinished merge of story $story" -p "$parent" "$tree"
        must 'failed to save' g update-ref "refs/kennel/saved/$story/unfinished-$out" "$out"
        w rebase --quit >/dev/null 2>&1
        must 'failed to undo an unfinished merge' w update-ref --no-deref HEAD "$onto"
        must 'failed to undo an unfinished merge' w reset -q --hard "$onto"
        must 'failed to undo an unfinished merge' w symbolic-ref HEAD "refs/heads/$branch"
        must 'failed to undo an unfinished merge' w reset -q --hard
    fi
    forget merging
}
on_branch() { [ "$(w symbolic-ref -q HEAD)" = "refs/heads/$branch" ]; }

# find_holder BASE: who has the base checked out, in $holder and $holder_git: the main checkout, or a
# worktree. Empty if nobody has.
find_holder() {
    holder=
    if [ "$bare" = false ] && [ "$(g symbolic-ref -q HEAD)" = "refs/heads/$1" ]; then
        holder=$repo holder_git=$common
    fi
    ask g worktree list --porcelain
    checkouts=$newline$out$newline
    for a in "$common"/worktrees/*/gitdir; do
        case $checkouts in *"${newline}branch refs/heads/$1$newline"*) ;; *) break ;; esac
        if [ -n "$holder" ] || [ ! -f "$a" ]; then continue; fi
        [ "$(g --git-dir="${a%/gitdir}" symbolic-ref -q HEAD 2>/dev/null)" = "refs/heads/$1" ] || continue
        at=$(cat "$a" && printf x) && at=${at%x} && at=${at%"$newline"}
        holder_git=${a%/gitdir}
        holder=$(cd -P -- "$holder_git" && cd -P -- "${at%/.git}" 2>/dev/null && pwd -P && printf x) &&
            holder=${holder%"${newline}x"} || refuse dirty "$1 is checked out at $at, which is not there"
    done
}
h() { (asked_to_end : && cd -P -- "$holder" && g --git-dir="$holder_git" --work-tree="$holder" "$@"); }
same_index() { h diff-index --cached --quiet "$1" --; }
same_files() { h diff-files --quiet --ignore-submodules=none && same_index "$1"; }

# The lock on the index of a checkout that is the user's is taken by us and not by git: a file says whose
# it is, and one that a killed step left is known and taken away. git works on a copy meanwhile.
hold_index() {
    note held "$held"
    trap drop_index_locks EXIT
    must 'failed to land' link_lock
}
link_lock() {
    ln "$notes/held" "$holder_git/index.lock" 2>/dev/null && return
    [ -e "$holder_git/index.lock" ] || ln "$notes/held" "$holder_git/index.lock" || return
    printf "Unable to create '%s': File exists, which some git has made\n" "$holder_git/index.lock" >&2
    return 1
}
drop_index_locks() {
    for l in "$common"/index.lock "$common"/worktrees/*/index.lock; do
        if [ "$(cat "$l" 2>/dev/null)" = "$held" ]; then rm -f "$l"; fi
    done
    rm -f "$notes/held"
}

# move_files FROM TO: files and index of the checkout, whose index is held; the index last.
move_files() {
    own=$notes/index
    rm -f "$own" "$own.lock"
    if [ -f "$holder_git/index" ]; then
        err=$(cp -p "$holder_git/index" "$own" 2>&1) || return
    fi
    change 'failed to land' in_own h read-tree -m -u "$1" "$2" || return
    err=$(mv -f "$own" "$holder_git/index" 2>&1)
}

# recover_landing BASE: a landing was killed, or had no room. What it had begun is undone; what is taken
# away for that is, byte by byte, the beginning of what the story has there, so that nothing is lost.
recover_landing() {
    held="kennel: landing of story $story"
    if has held; then drop_index_locks; fi
    has landing || return 0
    read -r was to <"$notes/landing"
    find_holder "$1"
    if [ -n "$holder" ] && [ "$base_id" != "$to" ] && [ "$(operation_in "$holder_git")" = none ]; then
        h update-index -q --refresh >/dev/null 2>&1
        if same_files "$to"; then
            hold_index
            move_files "$to" "$was" || fail 'failed to undo a landing' "$err"
            drop_index_locks
        elif same_index "$was"; then
            undo_files
        else
            # Somebody has been there since, or another story has landed: tracked files are theirs.
            changed=$(h diff-tree -r -z --no-renames --name-status "$was" "$to" | lines)
            each_line "$(each_changed name_untracked)" take_away
        fi
    fi
    forget landing
}
half_landed() {
    refuse half_landed "$holder was being moved from $was to $to when that was cut off, and $1: look \
with git status, then git reset --hard to one of the two"
}
# Nothing is written for it: there may be no room.
undo_files() {
    ask h diff-tree -r --no-renames --name-status "$was" "$to"
    changed=$(h diff-tree -r -z --no-renames --name-status "$was" "$to" | lines)
    ours=$(each_changed name_ours) || half_landed "${ours##*"$newline"} is neither as it was nor as it will be"
    each_line "$ours" take_away
    err=$(each_changed name_missing | unlines | h checkout-index -q -z --stdin 2>&1)
    h update-index -q --refresh >/dev/null 2>&1
    if same_files "$was"; then return; fi
    if is_full "$holder"; then refuse disk_full "failed to undo a landing in $holder: there is no room left"; fi
    half_landed "it cannot be undone${err:+: $err}"
}
# each_changed COMMAND: for every file that differs, with $how, $name, $n and $at. Ends where it fails.
each_changed() {
    printf '%s\n' "$changed" | while IFS= read -r how && IFS= read -r name; do
        whole_name
        "$1" || exit
    done
}
# each_line LINES COMMAND
each_line() {
    printf '%s\n' "$1" | while IFS= read -r name; do
        whole_name
        if [ -n "$name" ]; then "$2"; fi
    done
}
whole_name() {
    n=$(printf %s "$name" | LC_ALL=C tr '\001' '\n' && printf x) && n=${n%x}
    at=$holder/$n
}
name_ours() {
    # A directory in its place, or a link on the way there, is seen in the end.
    if [ -d "$at" ] && ! [ -L "$at" ] || link_above "$holder" "$n"; then return; fi
    if [ ! -e "$at" ] && [ ! -L "$at" ]; then return; fi
    if [ "$how" != A ] && h --literal-pathspecs diff-files --quiet -- "$n" </dev/null; then return; fi
    printf '%s\n' "$name"
    is_beginning </dev/null
}
name_untracked() {
    if [ "$how" != A ] || [ ! -f "$at" ] && [ ! -L "$at" ] || link_above "$holder" "$n" ||
        h --literal-pathspecs ls-files --error-unmatch -- "$n" >/dev/null 2>&1 </dev/null; then return; fi
    if is_beginning </dev/null; then printf '%s\n' "$name"; fi
}
name_missing() {
    if [ "$how" = A ] || [ -e "$at" ] || [ -L "$at" ]; then return; fi
    printf '%s\n' "$name"
}
take_away() {
    rm -f -- "$at"
    # Directories that came with it go with it, if nothing else is in them.
    while case $n in */*) ;; *) false ;; esac && n=${n%/*} && rmdir -- "$holder/$n" 2>/dev/null; do :; done
}

# link_above DIRECTORY NAME: true if a part of the way from one to the other is a link.
link_above() {
    up=$1/$2 up=${up%/*}
    while [ "$up" != "$1" ]; do
        if [ -L "$up" ]; then return; fi
        up=${up%/*}
    done
    return 1
}
# True if the file $at holds nothing but the beginning of what $to has as $n.
is_beginning() {
    g cat-file -e "$to:$n" 2>/dev/null || return
    if [ -L "$at" ]; then
        [ "$(readlink "$at" && printf x)" = "$(g cat-file blob "$to:$n" && printf '\nx')" ]
        return
    fi
    [ -f "$at" ] && [ -z "$(h cat-file --filters "$to:$n" | cmp - "$at" 2>/dev/null)" ] &&
        [ "$(wc -c <"$at")" -le "$(h cat-file --filters "$to:$n" | wc -c)" ]
}

# run_commands OUTCOME COMMAND...: a user's commands in the worktree, in the user's own language.
run_commands() {
    named=$1
    shift
    for command in "$@"; do
        (cd -P -- "$path" && KENNEL_STORY=$story KENNEL_REPOSITORY=$repo KENNEL_WORKTREE=$path &&
            export KENNEL_STORY KENNEL_REPOSITORY KENNEL_WORKTREE && exec sh -c "exec $command") \
            >&2 </dev/null
        code=$?
        [ "$code" -eq 0 ] || refuse "$named" "$command ended with $code" "\"code\":$code"
    done
}

# snapshot: the worktree as a tree, through an index of our own. Sets $tree, and $index_tree if what is
# staged is different from both the commit and the files; $unsaved names what git could not take in.
# The user's index, HEAD and stash are only read.
snapshot() {
    own=$notes/index
    rm -f "$own" "$own.lock"
    if [ -f "$admin/index" ]; then
        # With its time: git trusts an entry only if it is older than the index, and a copy that looks
        # younger would hide a change of the same length in the same second.
        err=$(cp -p "$admin/index" "$own" 2>&1) || fail "failed to copy the index" "$err"
    else
        must 'failed to read HEAD' in_own w read-tree HEAD
    fi
    index_tree=$(in_own w write-tree 2>/dev/null) || index_tree=
    # Files that git was told not to look at are looked at.
    in_own w ls-files -v -z | lines | sed -n 's/^[a-z] //p' | unlines |
        in_own w update-index -z --no-assume-unchanged --stdin 2>/dev/null
    in_own w ls-files -v -z | lines | sed -n 's/^[sS] //p' | while IFS= read -r n; do
        n=$(printf %s "$n" | LC_ALL=C tr '\001' '\n' && printf x) && n=${n%x}
        if [ -e "$path/$n" ] || [ -L "$path/$n" ]; then printf '%s\000' "$n"; fi
    done | in_own w update-index -z --no-skip-worktree --stdin 2>/dev/null
    # One bad file does not keep the others from being saved; what is missing is found below.
    if ! change 'failed to read the worktree' in_own w add -A --ignore-errors -- .; then
        case $err in *'No space left on device'* | *'Disk quota exceeded'*) fail 'failed to save' "$err" ;; esac
        printf '%s\n' "$err" >&2
    fi
    tree=$(in_own w write-tree 2>/dev/null) || {
        err=$(in_own w write-tree 2>&1)
        fail 'failed to save' "$err"
    }
    ask in_own w ls-files --others --exclude-standard
    unsaved=$out
    ask in_own w diff-files --name-only --ignore-submodules=all
    unsaved=$unsaved${out:+$newline}$out
    err=$( { in_own w ls-files -s -z >"$notes/list"; } 2>&1) || fail 'failed to list the files' "$err"
    out=$(lines <"$notes/list" | sed -n 's/^160000 \([0-9a-f]*\) 0	/\1 /p' | nested)
    unsaved=$(hex_of "$unsaved${out:+$newline}$out")
    rm -f "$own" "$own.lock" "$notes/list"
}
in_own() { (GIT_INDEX_FILE=$own && export GIT_INDEX_FILE && "$@"); }

# Repositories inside the worktree whose work is not in a commit that the story's HEAD names.
nested() {
    while read -r id n; do
        n=$(printf %s "$n" | LC_ALL=C tr '\001' '\n' && printf x) && n=${n%x}
        [ -e "$path/$n/.git" ] || continue
        known=$(w rev-parse -q --verify "HEAD:$n" 2>/dev/null)
        if [ "$known" != "$id" ] || [ -n "$(g -C "$path/$n" status --porcelain 2>&1)" ]; then
            printf '%s\n' "$n"
        fi
    done
}

# Commits need a name; ours is used if the user has none.
identify() {
    g var GIT_COMMITTER_IDENT >/dev/null 2>&1 && g var GIT_AUTHOR_IDENT >/dev/null 2>&1 && return
    GIT_AUTHOR_NAME=kennel GIT_AUTHOR_EMAIL=kennel@localhost
    GIT_COMMITTER_NAME=kennel GIT_COMMITTER_EMAIL=kennel@localhost
    export GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_COMMITTER_NAME GIT_COMMITTER_EMAIL
}
is_in() { g merge-base --is-ancestor "$1" "$2" 2>/dev/null; }
