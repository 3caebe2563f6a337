//! From a directory to the repository it belongs to, by reading what git wrote there.
//!
//! ```text
//! DIR/.git is a directory               DIR
//! DIR/.git is a file, and leads to one
//!   without commondir                   DIR: a submodule, or its git directory is elsewhere
//!   with commondir                      a linked worktree: whose the common directory is
//! DIR is a git directory itself         whose it is
//!
//! whose a git directory is: P/.git is P's; X below P is P's if the file P/.git leads to it; a bare
//! one is its own; one with core.worktree is that directory's
//! ```
//!
//! Owns: these rules. Never runs git, never writes, and believes nothing about trust: whoever can
//! write a `.git` file can lead here anywhere, but not make anybody trust what is there.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::trust::read_file;

/// Why a directory is of no project.
#[derive(Debug)]
pub enum ProjectError {
    /// It is in no repository.
    NotInRepository(PathBuf),
    /// The system refused.
    Unreadable(PathBuf, io::Error),
    /// What git wrote there leads nowhere.
    Broken {
        /// What was read.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Nothing there says where its main checkout is.
    NoMainCheckout(PathBuf),
    /// Its path is not text, which everything that is said about it would have to be.
    NotText(PathBuf),
}

impl fmt::Display for ProjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInRepository(dir) => write!(
                f,
                "{} is in no repository of git: go to one, or make one with `git init`",
                dir.display()
            ),
            Self::Unreadable(path, e) => write!(f, "failed to read {}: {e}", path.display()),
            Self::Broken { file, why } => write!(
                f,
                "{} does not lead to a repository: {why}; `git worktree repair` may help",
                file.display()
            ),
            Self::NoMainCheckout(common) => write!(
                f,
                "{} does not say where its main checkout is: give the main checkout itself",
                common.display()
            ),
            Self::NotText(path) => write!(
                f,
                "{} cannot be a project: its path is not UTF-8, rename it",
                path.display()
            ),
        }
    }
}

impl std::error::Error for ProjectError {}

/// The main checkout, or the bare repository, of any directory in it or in a worktree of it. With
/// links resolved, so that there is one path for each.
pub fn main_checkout(dir: &Path) -> Result<PathBuf, ProjectError> {
    let dir = resolved(dir)?;
    for level in dir.ancestors() {
        if let Some(found) = at(level)? {
            return match found.to_str() {
                Some(_) => Ok(found),
                None => Err(ProjectError::NotText(found)),
            };
        }
    }
    Err(ProjectError::NotInRepository(dir))
}

/// The branch a main checkout or bare repository is on, if it is on one that can be known.
pub(super) fn branch_of(repository: &Path) -> Option<String> {
    let git_dir = match leads_to(&repository.join(".git")) {
        Ok(Some(git_dir)) => git_dir,
        Ok(None) => repository.to_owned(),
        Err(_) => return None,
    };
    let head = line(&git_dir.join("HEAD")).ok().flatten()?;
    let head = std::str::from_utf8(&head).ok()?;
    let branch = head.strip_prefix("ref:")?.trim_start().strip_prefix("refs/heads/")?;
    // What git writes there when its refs are in a table, which is not read here.
    (branch != ".invalid").then(|| branch.to_owned())
}

/// Whose checkout or git directory this very directory is, if it is one.
fn at(level: &Path) -> Result<Option<PathBuf>, ProjectError> {
    let dot_git = level.join(".git");
    match leads_to(&dot_git)? {
        Some(git_dir) => {
            let common = common_of(&git_dir)?;
            match common {
                Some(common) => owner_of(&common).map(Some),
                None if is_git_dir(&git_dir) => Ok(Some(level.to_owned())),
                // An empty directory of this name stops git's search no more than ours.
                None if dot_git.is_dir() => Ok(None),
                None => Err(no_git_dir(&dot_git, &git_dir)),
            }
        }
        None if is_git_dir(level) => owner_of(level).map(Some),
        None => Ok(None),
    }
}

/// The git directory that a `.git` is or leads to; none if there is no such thing.
fn leads_to(dot_git: &Path) -> Result<Option<PathBuf>, ProjectError> {
    let found = match fs::metadata(dot_git) {
        Ok(found) => found,
        Err(e) if is_absence(&e) => return Ok(None),
        Err(e) => return Err(ProjectError::Unreadable(dot_git.to_owned(), e)),
    };
    if found.is_dir() {
        return resolved(dot_git).map(Some);
    }
    let text = line(dot_git)?.unwrap_or_default();
    let Some(path) = text.strip_prefix(b"gitdir: ") else {
        let why = "it is a file that does not begin with `gitdir: `".to_owned();
        return Err(ProjectError::Broken { file: dot_git.to_owned(), why });
    };
    let git_dir = dot_git.parent().unwrap_or(Path::new("/")).join(OsStr::from_bytes(path));
    fs::canonicalize(&git_dir).map(Some).map_err(|e| {
        let why = format!("it names {}, which cannot be entered: {e}", git_dir.display());
        ProjectError::Broken { file: dot_git.to_owned(), why }
    })
}

/// The git directory that a worktree's own shares with others; none if it is no worktree's.
fn common_of(git_dir: &Path) -> Result<Option<PathBuf>, ProjectError> {
    let file = git_dir.join("commondir");
    let Some(path) = line(&file)? else { return Ok(None) };
    let common = git_dir.join(OsStr::from_bytes(&path));
    let found = fs::canonicalize(&common).ok().filter(|common| is_git_dir(common));
    found.map(Some).ok_or_else(|| no_git_dir(&file, &common))
}

/// The main checkout of a git directory that is shared, or the directory itself if it is bare.
fn owner_of(common: &Path) -> Result<PathBuf, ProjectError> {
    let none = || ProjectError::NoMainCheckout(common.to_owned());
    let parent = common.parent().ok_or_else(none)?;
    if common.file_name().is_some_and(|name| name == ".git") || is_led_to(parent, common) {
        return Ok(parent.to_owned());
    }
    let core = Core::read(common)?;
    if core.bare {
        return Ok(common.to_owned());
    }
    let checkout = core.worktree.map(|path| common.join(path)).ok_or_else(none)?;
    let checkout = resolved(&checkout)?;
    if is_led_to(&checkout, common) { Ok(checkout) } else { Err(none()) }
}

fn is_led_to(checkout: &Path, common: &Path) -> bool {
    leads_to(&checkout.join(".git")).is_ok_and(|found| found.as_deref() == Some(common))
}

/// What git itself asks of one.
fn is_git_dir(dir: &Path) -> bool {
    let has = |name: &str| dir.join(name).symlink_metadata().is_ok();
    has("HEAD") && dir.join("objects").is_dir() && dir.join("refs").is_dir()
}

fn no_git_dir(file: &Path, named: &Path) -> ProjectError {
    let why = format!("it names {}, which is no git directory", named.display());
    ProjectError::Broken { file: file.to_owned(), why }
}

/// What a repository's configuration says of itself, as far as it is asked here.
#[derive(Debug, Default, PartialEq, Eq)]
struct Core {
    bare: bool,
    worktree: Option<String>,
}

impl Core {
    /// Of both files: git keeps these in the second one if worktrees have configuration.
    fn read(common: &Path) -> Result<Self, ProjectError> {
        let mut core = Self::default();
        for name in ["config", "config.worktree"] {
            let file = common.join(name);
            let text = bytes(&file)?.unwrap_or_default();
            core.add(&String::from_utf8_lossy(&text));
        }
        Ok(core)
    }

    fn add(&mut self, text: &str) {
        let mut in_core = false;
        for line in text.lines().map(str::trim) {
            if let Some(section) = line.strip_prefix('[') {
                let name = section.split(']').next().unwrap_or_default();
                in_core = name.trim().eq_ignore_ascii_case("core");
                continue;
            }
            let (key, value) = match line.split_once('=') {
                Some((key, value)) => (key.trim(), value_of(value)),
                // A key alone is true.
                None => (line, "true".to_owned()),
            };
            match key.to_ascii_lowercase().as_str() {
                "bare" if in_core => self.bare = is_true(&value),
                "worktree" if in_core => self.worktree = Some(value),
                _ => {}
            }
        }
    }
}

/// A value without its quotes, escapes and comment.
fn value_of(text: &str) -> String {
    let (mut value, mut quoted) = (String::new(), false);
    let mut letters = text.trim().chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => quoted = !quoted,
            '\\' => value.extend(letters.next()),
            '#' | ';' if !quoted => break,
            letter => value.push(letter),
        }
    }
    value.trim_end().to_owned()
}

fn is_true(value: &str) -> bool {
    ["true", "yes", "on", "1"].iter().any(|word| value.eq_ignore_ascii_case(word))
}

fn resolved(path: &Path) -> Result<PathBuf, ProjectError> {
    fs::canonicalize(path).map_err(|e| ProjectError::Unreadable(path.to_owned(), e))
}

/// A file of one line, without its end; none if there is no such file.
fn line(file: &Path) -> Result<Option<Vec<u8>>, ProjectError> {
    let mut line = bytes(file)?;
    if let Some(line) = &mut line {
        while line.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            line.pop();
        }
    }
    Ok(line)
}

/// Bounded as our own files are, which is far more than git ever writes into these; and a pipe in
/// their place is not waited for.
fn bytes(file: &Path) -> Result<Option<Vec<u8>>, ProjectError> {
    match read_file(file) {
        Ok(bytes) => Ok(bytes),
        Err(e) if is_absence(&e) => Ok(None),
        Err(e) => Err(ProjectError::Unreadable(file.to_owned(), e)),
    }
}

fn is_absence(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Scratch;
    use super::*;

    /// A git directory as far as it is looked at.
    fn git_dir(scratch: &Scratch, at: &str, config: &str) {
        for dir in ["objects", "refs"] {
            scratch.dir(&format!("{at}/{dir}"));
        }
        scratch.write(&format!("{at}/HEAD"), "ref: refs/heads/trunk\n");
        scratch.write(&format!("{at}/config"), config);
    }

    /// A linked worktree of it.
    fn linked(scratch: &Scratch, common: &str, at: &str) {
        let own = format!("{common}/worktrees/w");
        scratch.write(&format!("{own}/commondir"), "../..\n");
        scratch.write(&format!("{own}/HEAD"), "ref: refs/heads/other\n");
        let own = scratch.path(&own);
        scratch.write(&format!("{at}/.git"), &format!("gitdir: {}\n", own.display()));
    }

    const BARE: &str = "[core]\n\tbare = true\n";

    #[test]
    fn every_directory_of_a_project_leads_to_the_same_main_checkout() {
        let scratch = Scratch::new("checkout");
        git_dir(&scratch, "plain/.git", "[core]\n\tbare = false\n");
        linked(&scratch, "plain/.git", "trees/w");
        git_dir(&scratch, "bare.git", BARE);
        linked(&scratch, "bare.git", "trees/b");
        // A bare one that the file beside it leads to, as some lay them out.
        git_dir(&scratch, "beside/.bare", BARE);
        scratch.write("beside/.git", "gitdir: ./.bare\n");
        linked(&scratch, "beside/.bare", "beside/feature");
        // What git makes of a bare clone into .git.
        git_dir(&scratch, "hidden/.git", BARE);
        linked(&scratch, "hidden/.git", "hidden/feature");
        let sub = "[core]\n\tworktree = \"../../../sub\" ; its own\n";
        git_dir(&scratch, "plain/.git/modules/sub", sub);
        scratch.write("plain/sub/.git", "gitdir: ../.git/modules/sub\n");
        linked(&scratch, "plain/.git/modules/sub", "trees/s");
        git_dir(&scratch, "elsewhere", "");
        scratch.write("separate/.git", &format!("gitdir: {}", scratch.path("elsewhere").display()));
        for dir in
            ["plain/src/deep", "trees/w/src", "bare.git/hooks", "plain/sub/x", "plain/e/.git"]
        {
            scratch.dir(dir);
        }
        scratch.link("plain/src", "shortcut");
        for (from, expected) in [
            ("plain", "plain"),
            ("plain/src/deep", "plain"),
            ("shortcut/deep", "plain"),
            ("plain/.git/refs", "plain"),
            ("plain/.git/worktrees/w", "plain"),
            ("plain/e", "plain"),
            ("trees/w/src", "plain"),
            ("bare.git/hooks", "bare.git"),
            ("trees/b", "bare.git"),
            ("beside", "beside"),
            ("beside/.bare", "beside"),
            ("beside/feature", "beside"),
            ("hidden", "hidden"),
            ("hidden/feature", "hidden"),
            ("plain/sub/x", "plain/sub"),
            ("plain/.git/modules/sub", "plain/sub"),
            ("trees/s", "plain/sub"),
            ("separate", "separate"),
        ] {
            let found = main_checkout(&scratch.path(from));
            assert_eq!(found.expect(from), scratch.path(expected), "{from}");
            assert_eq!(branch_of(&scratch.path(expected)).as_deref(), Some("trunk"), "{expected}");
        }
    }

    #[test]
    fn what_leads_nowhere_is_told_with_what_was_read() {
        let scratch = Scratch::new("nowhere");
        scratch.dir("none/deep");
        scratch.write("words/.git", "this is not git's\n");
        scratch.write("gone/.git", "gitdir: ../nothing/here\n");
        scratch.dir("empty");
        scratch.write("to-empty/.git", "gitdir: ../empty\n");
        scratch.write("lost/own/commondir", "../../nothing\n");
        scratch.write("lost/.git", "gitdir: own\n");
        git_dir(&scratch, "elsewhere", "[core]\n\tbare = false\n");
        linked(&scratch, "elsewhere", "of-elsewhere");
        git_dir(&scratch, "liar", "[core]\n\tworktree = ../none\n");
        for (from, expected) in [
            ("none/deep", "is in no repository of git"),
            ("missing", "failed to read"),
            ("words", "does not begin with `gitdir: `"),
            ("gone", "nothing/here, which cannot be entered"),
            ("to-empty", "empty, which is no git directory"),
            ("lost", "nothing, which is no git directory"),
            ("of-elsewhere", "elsewhere does not say where its main checkout is"),
            ("liar", "liar does not say where its main checkout is"),
        ] {
            let said = main_checkout(&scratch.path(from)).expect_err(from).to_string();
            assert!(said.contains(expected), "{from}: {said}");
        }
        let odd = scratch.path("").join(OsStr::from_bytes(b"\xff"));
        fs::create_dir_all(odd.join(".git/objects")).unwrap();
        fs::create_dir(odd.join(".git/refs")).unwrap();
        fs::write(odd.join(".git/HEAD"), "").unwrap();
        assert!(matches!(main_checkout(&odd), Err(ProjectError::NotText(_))));
    }

    #[test]
    fn the_branch_is_read_or_not_known() {
        let scratch = Scratch::new("branch");
        git_dir(&scratch, "r/.git", "");
        for (head, expected) in [
            ("ref: refs/heads/feature/one\n", Some("feature/one")),
            ("ref:refs/heads/x", Some("x")),
            ("0123456789012345678901234567890123456789\n", None),
            ("ref: refs/heads/.invalid\n", None),
            ("ref: refs/tags/v1\n", None),
            ("", None),
        ] {
            scratch.write("r/.git/HEAD", head);
            assert_eq!(branch_of(&scratch.path("r")).as_deref(), expected, "{head}");
        }
        assert_eq!(branch_of(&scratch.path("nothing")), None);
    }

    #[test]
    fn gits_own_configuration_is_read_as_git_reads_it() {
        for (text, bare, worktree) in [
            ("[core]\nbare = true", true, None),
            ("[CORE]\n\tBare=YES\n", true, None),
            ("[core]\nbare", true, None),
            ("[core]\nbare = true\nbare = false", false, None),
            ("[core \"x\"]\nbare = true", false, None),
            ("[other]\nbare = true", false, None),
            ("# [core]\n[core]\n; bare = true\nworktree = /a b # c", false, Some("/a b")),
            ("[core]\nworktree = \"/a # \\\"b\"", false, Some("/a # \"b")),
        ] {
            let mut core = Core::default();
            core.add(text);
            let expected = Core { bare, worktree: worktree.map(str::to_owned) };
            assert_eq!(core, expected, "{text}");
        }
    }
}
