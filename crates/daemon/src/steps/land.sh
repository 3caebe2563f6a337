# land REPOSITORY STORY BASE OLD NEW
# Moves the base from OLD, where the gates ran, to NEW, and from nowhere else.
story=$2 base=$3 old=$4 new=$5
open_repository "$1" "$2"
find_base "$base"
make_directory "$notes"
landed() { forget landing; answer 0 landed "\"head\":\"$new\""; }
moved() { refuse base_moved "$base is at $base_id, not at $old any more" "\"now\":\"$base_id\""; }

g rev-parse -q --verify "$new^{commit}" >/dev/null || refuse not_fast_forward "there is no commit $new"
is_in "$old" "$new" || refuse not_fast_forward "$new does not stand on $old"

# Who has the base checked out: the main checkout, or a worktree.
holder=
if [ "$bare" = false ] && [ "$(g symbolic-ref -q HEAD)" = "refs/heads/$base" ]; then
    holder=$repo holder_git=$common
fi
ask g worktree list --porcelain
checkouts=$newline$out$newline
for a in "$common"/worktrees/*/gitdir; do
    case $checkouts in *"${newline}branch refs/heads/$base$newline"*) ;; *) break ;; esac
    if [ -n "$holder" ] || [ ! -f "$a" ]; then continue; fi
    [ "$(g --git-dir="${a%/gitdir}" symbolic-ref -q HEAD 2>/dev/null)" = "refs/heads/$base" ] || continue
    at=$(cat "$a" && printf x) && at=${at%x} && at=${at%"$newline"}
    holder_git=${a%/gitdir}
    holder=$(cd -P -- "$holder_git" && cd -P -- "${at%/.git}" 2>/dev/null && pwd -P && printf x) &&
        holder=${holder%"${newline}x"} || refuse dirty "$base is checked out at $at, which is not there"
done
h() { (asked_to_end : && cd -P -- "$holder" && g --git-dir="$holder_git" --work-tree="$holder" "$@"); }
same_files() { h diff-files --quiet --ignore-submodules=none && h diff-index --cached --quiet "$1" --; }

if [ "$base_id" = "$new" ]; then landed; fi
[ "$base_id" = "$old" ] || moved
if [ -z "$holder" ]; then
    change 'failed to land' g update-ref -m "kennel: landed story $story" "refs/heads/$base" "$new" "$old" || {
        what=$err
        find_base "$base"
        [ "$base_id" = "$old" ] || moved
        fail 'failed to land' "$what"
    }
    landed
fi

operation=$(operation_in "$holder_git")
[ "$operation" = none ] || refuse dirty "$holder is in the middle of: $operation"
h update-index -q --refresh >/dev/null 2>&1
if ! same_files "$old"; then
    # git writes the files first and moves the branch last. Were we killed in between, and is all there?
    if [ "$(cat "$notes/landing" 2>/dev/null)" = "$old $new" ]; then
        same_files "$new" ||
            refuse half_landed "$holder was being moved to $new when we were killed: look, then git reset"
        must 'failed to land' g update-ref -m "kennel: landed story $story" "refs/heads/$base" "$new" "$old"
        landed
    fi
    refuse dirty "$holder has $base checked out, with changes that are in no commit"
fi
note landing "$old $new"
change 'failed to land' h merge -q --ff-only "$new" || {
    what=$err
    # Unless git has written some of the files: the next try must know whose they are.
    if same_files "$old"; then forget landing; fi
    case $what in *'would be overwritten'*) refuse dirty "$holder: $what" ;; esac
    find_base "$base"
    [ "$base_id" = "$old" ] || moved
    fail 'failed to land' "$what"
}
find_base "$base"
[ "$base_id" = "$new" ] || moved
landed
