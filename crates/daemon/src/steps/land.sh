# land REPOSITORY STORY BASE OLD NEW
# Moves the base from OLD, where the gates ran, to NEW, and from nowhere else. The files of the checkout
# that has it come first, then its index, the branch last: before that, nothing has landed.
story=$2 base=$3 old=$4 new=$5
open_repository "$1" "$2"
find_base "$base"
make_directory "$notes"
landed() { forget landing; answer 0 landed "\"head\":\"$new\""; }
moved() { refuse base_moved "$base is at $base_id, not at $old any more" "\"now\":\"$base_id\""; }

g rev-parse -q --verify "$new^{commit}" >/dev/null || refuse not_fast_forward "there is no commit $new"
is_in "$old" "$new" || refuse not_fast_forward "$new does not stand on $old"

recover_landing "$base"
find_holder "$base"
if [ "$base_id" = "$new" ]; then landed; fi
[ "$base_id" = "$old" ] || moved
move_base() {
    change 'failed to land' "$1" update-ref -m "kennel: landed story $story" "refs/heads/$base" "$new" "$old"
}
# moved_or_failed COMPLAINT
moved_or_failed() {
    find_base "$base"
    [ "$base_id" = "$old" ] || moved
    fail 'failed to land' "$1"
}
if [ -z "$holder" ]; then
    move_base g || moved_or_failed "$err"
    landed
fi

operation=$(operation_in "$holder_git")
[ "$operation" = none ] || refuse dirty "$holder is in the middle of: $operation"
h update-index -q --refresh >/dev/null 2>&1
same_files "$old" || refuse dirty "$holder has $base checked out, with changes that are in no commit"
# From here on it finishes, one way or the other: what is half written is in the user's own checkout.
asked_to_end ''
hold_index
# Somebody may have changed it before it was ours.
same_files "$old" || refuse dirty "$holder has $base checked out, with changes that are in no commit"
note landing "$old $new"
move_files "$old" "$new" && move_base h || {
    what=$err
    # Nothing was written: somebody's files are in the way, and stay.
    case $what in *'would be overwritten'* | *'not uptodate'*)
        forget landing
        refuse dirty "$holder: $what"
        ;;
    esac
    recover_landing "$base"
    moved_or_failed "$what"
}
drop_index_locks
landed
