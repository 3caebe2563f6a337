//! Whose a directory is: what is read of git's own files, against what a real git makes of it.

use std::fs;
use std::path::{Path, PathBuf};

use kennel_daemon::config::project::{ProjectError, main_checkout};

use crate::World;

#[track_caller]
fn leads(from: &Path, to: &Path) {
    let to = fs::canonicalize(to).expect("it is there");
    assert_eq!(main_checkout(from).expect("it is in a repository"), to, "{}", from.display());
}

fn text(path: &Path) -> &str {
    path.to_str().expect("it is text")
}

#[test]
fn every_worktree_git_makes_leads_to_the_main_checkout() {
    let world = World::new("projects");
    let beside = |name: &str| world.scratch.borrow().path().join(name);
    let deep = world.repository.join("src/deep");
    fs::create_dir_all(&deep).unwrap();
    let (absolute, relative) = (beside("absolute"), beside("relative"));
    world.git(&["worktree", "add", "-q", "-b", "one", text(&absolute)]);
    let add = ["worktree", "add", "-q", "-b", "two", text(&relative)];
    // Since git 2.48; before that it is an ordinary worktree.
    world.git(&[&["-c", "worktree.useRelativePaths=true"][..], &add].concat());
    let moved = beside("moved");
    world.git(&["worktree", "move", text(&relative), text(&moved)]);
    world.keep_main();
    for from in [&world.repository, &deep, &world.repository.join(".git/refs"), &absolute, &moved] {
        leads(from, &world.repository);
    }
    // What stories have, as the step itself makes it.
    let place = world.fix_it();
    world.prepare(&place);
    leads(&place.worktree, &world.repository);
    fs::remove_dir(&deep).unwrap();
    fs::remove_dir(world.repository.join("src")).unwrap();
    world.check_main();
}

#[test]
fn submodules_bare_repositories_and_git_directories_elsewhere_are_what_git_says() {
    let world = World::new("kinds");
    let beside = |name: &str| world.scratch.borrow().path().join(name);
    let clone = |flags: &[&str], to: &Path| {
        let args = [&["clone", "-q"], flags, &[text(&world.repository), text(to)]].concat();
        world.git_in(world.scratch.borrow().path(), &args);
    };
    let worktree_of = |of: &Path, name: &str| -> PathBuf {
        let to = beside(name);
        world.git_in(of, &["worktree", "add", "-q", "-b", name, text(&to)]);
        to
    };
    let bare = beside("bare.git");
    clone(&["--bare"], &bare);
    leads(&bare.join("refs"), &bare);
    leads(&worktree_of(&bare, "of-bare"), &bare);
    // Configuration for each worktree moves core.bare to another file.
    world.git_in(&bare, &["config", "extensions.worktreeConfig", "true"]);
    world.git_in(&bare, &["config", "--unset", "core.bare"]);
    world.git_in(&bare, &["config", "--worktree", "core.bare", "true"]);
    leads(&beside("of-bare"), &bare);

    let whole = beside("whole");
    clone(&[], &whole);
    world.git_in(&whole, &["submodule", "--quiet", "add", text(&bare), "sub"]);
    let sub = whole.join("sub");
    leads(&sub, &sub);
    leads(&worktree_of(&sub, "of-sub"), &sub);
    leads(&worktree_of(&whole, "of-whole"), &whole);

    let (checkout, elsewhere) = (beside("checkout"), beside("elsewhere"));
    clone(&["--separate-git-dir", text(&elsewhere)], &checkout);
    leads(&checkout, &checkout);
    // Nothing that git keeps leads back from there.
    let lost = main_checkout(&worktree_of(&checkout, "of-checkout"));
    assert!(matches!(lost, Err(ProjectError::NoMainCheckout(_))), "{lost:?}");
    world.check_main();
}
