//! The git half of a story: each step is one owned run of a small POSIX `sh` script.
//!
//! ```text
//! Step --command()--> ["sh", "-c", SCRIPT, NAME, ARGUMENT...] --a run--> exit status, stdout
//!                                                                              |
//! StepOutcome <----------------------------- read() --------------------------'
//! ```
//!
//! Owns: the arguments of the scripts in `steps/`, and what their last line means. Scripts, because
//! a run is what is contained, limited, recorded and survives us; each may be killed at any
//! instruction and run again. Pure: never starts, reads or writes anything itself. The caller sees
//! to it that a story has one step or agent at a time, that `prepare` comes before every agent, and
//! that nobody is left in a worktree that is merged or removed: that is what slots and proofs are
//! for.
//!
//! The environment needs no care of the caller's: a script takes out of it what would lead git to
//! another repository, and says to git what must not happen (hooks, questions, pagers, editors).

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use kennel_process::ExitStatus;
use serde::Deserialize;
use serde::de::{self, Deserializer};

use crate::Time;
use crate::text::Text;

const COMMON: &str = include_str!("steps/common.sh");
const PREPARE: &str = include_str!("steps/prepare.sh");
const LOOK: &str = include_str!("steps/look.sh");
const SAVE: &str = include_str!("steps/save.sh");
const MERGE: &str = include_str!("steps/merge.sh");
const LAND: &str = include_str!("steps/land.sh");
const REMOVE: &str = include_str!("steps/remove.sh");

/// How often a command of git is tried while somebody holds one of git's locks. With the pause, and
/// the second that git itself waits for a ref, ten to twenty seconds: longer than a commit takes,
/// shorter than a person waits before looking.
const LOCK_TRIES: u32 = 10;
/// Seconds between two tries. Whole ones: POSIX `sleep` knows no others.
const LOCK_PAUSE_SECONDS: u32 = 1;
/// The most of git's words, or of a conflict, that is passed on: enough for an agent to see what
/// clashed, little beside what a prompt can hold.
const MAX_TEXT_BYTES: u32 = 16 << 10;
/// How many different things can be saved for a story with one time: its runs do not overlap, so
/// more is a clock that stands still.
const MAX_SAVED_AT_ONCE: u32 = 100;
/// With less room than this, in KiB, a write that failed without a reason failed for want of room:
/// git's own files take a few hundred.
const FULL_KB: u32 = 1024;
/// The longest id: it becomes part of a ref, a directory, a branch, and the id of a run, which has
/// 64 bytes.
const MAX_STORY_BYTES: usize = 36;

/// What every script begins with.
const BEGINS: &str = "LOCK_TRIES=";
/// Where in a command its script is, its name, the commit that a landing puts the base to, and the
/// branch of a removal and what was saved before it.
const SCRIPT_AT: usize = 2;
const NAME_AT: usize = 3;
const LANDS_AT: usize = 8;
const BRANCH_AT: usize = 6;
const SAVED_AT: usize = 9;

/// What the last line of every script begins with.
const MARK: &str = "kennel-step: ";

/// The id of a story as git sees it: small letters, digits and single `-` between them, so that it
/// is safe in a ref, a path and a message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorySlug(String);

impl StorySlug {
    /// Checks the letters.
    pub fn new(slug: impl Into<String>) -> Result<Self, StepError> {
        let slug = slug.into();
        let fine = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let dashes = slug.starts_with('-') || slug.ends_with('-') || slug.contains("--");
        if slug.is_empty() || slug.len() > MAX_STORY_BYTES || dashes || !slug.bytes().all(fine) {
            return Err(StepError::Story(slug));
        }
        Ok(Self(slug))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Where a story's work is: what all steps are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The main checkout, or a bare repository.
    pub repository: PathBuf,
    /// The story.
    pub story: StorySlug,
    /// What the branches of stories begin with; may be empty.
    pub branch_prefix: String,
    /// The branch that stories start from and land on, without `refs/heads/`.
    pub base: String,
    /// The worktree's own directory.
    pub worktree: PathBuf,
}

impl Place {
    /// The story's branch.
    #[must_use]
    pub fn branch(&self) -> String {
        format!("{}{}", self.branch_prefix, self.story.0)
    }

    fn check(&self) -> Result<(), StepError> {
        for path in [&self.repository, &self.worktree] {
            check_path(path)?;
        }
        for name in [&self.base, &self.branch()] {
            if !is_branch_name(name) {
                return Err(StepError::Branch(name.clone()));
            }
        }
        if self.base == self.branch() {
            return Err(StepError::BranchIsBase(self.base.clone()));
        }
        Ok(())
    }
}

/// Relative ones, and those with a part that git would write differently, would not be found again.
fn check_path(path: &Path) -> Result<(), StepError> {
    let bytes = path.as_os_str().as_bytes();
    let strange = |part: &[u8]| part.is_empty() || part == b"." || part == b"..";
    let odd = bytes.get(1..).is_none_or(|rest| rest.split(|b| *b == b'/').any(strange));
    if !path.is_absolute() || odd || bytes.contains(&0) {
        return Err(StepError::Path(path.to_owned()));
    }
    Ok(())
}

/// The rules of `git check-ref-format`, and one more: none begins like an option.
pub(crate) fn is_branch_name(name: &str) -> bool {
    let fine = |part: &str| {
        !part.is_empty() && !part.starts_with('.') && !part.ends_with('.') && {
            !part.ends_with(".lock")
        }
    };
    let odd = |c: char| c.is_control() || " ~^:?*[\\".contains(c);
    let never = name.contains("..") || name.contains("@{") || name == "@";
    !name.starts_with('-') && !never && !name.contains(odd) && name.split('/').all(fine)
}

/// One step, with all it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Branch and worktree, made or found again.
    Prepare {
        /// Where.
        place: Place,
        /// Which ignored files are copied from the main checkout, beside those that its
        /// `.worktreeinclude` names; lines of a `.gitignore`.
        copy: Vec<String>,
        /// Commands in a new worktree, each as its words.
        setup: Vec<Vec<String>>,
    },
    /// How worktree and main checkout stand.
    Look {
        /// Where.
        place: Place,
    },
    /// Keep what is in no commit, or in none of the base.
    Save {
        /// Where.
        place: Place,
        /// Now, once: a second try with the same time keeps the same under the same name.
        at: Time,
    },
    /// The branch onto the base, in the worktree.
    Merge {
        /// Where.
        place: Place,
        /// How.
        mode: MergeMode,
    },
    /// The base to where the gates ran.
    Land {
        /// Where.
        place: Place,
        /// Where the base was when the gates ran.
        old: String,
        /// What they ran on.
        new: String,
    },
    /// Take the worktree away.
    Remove {
        /// Where.
        place: Place,
        /// The ref that holds what is not in the base, if that was just saved.
        saved: Option<String>,
        /// Commands in the worktree before it goes.
        teardown: Vec<Vec<String>>,
    },
}

/// How a branch meets the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeMode {
    /// The story's commits are written anew on top of the base.
    Rebase,
    /// The base is merged into the story's branch.
    Merge,
}

impl Step {
    /// The name of a look.
    pub(crate) const LOOK_NAME: &str = "kennel-look";
    /// The name of a merge.
    pub(crate) const MERGE_NAME: &str = "kennel-merge";
    /// The name of a landing.
    pub(crate) const LAND_NAME: &str = "kennel-land";
    /// The name of a removal.
    pub(crate) const REMOVE_NAME: &str = "kennel-remove";

    /// The step's name, which its process shows as its own.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Prepare { .. } => "kennel-prepare",
            Self::Look { .. } => Self::LOOK_NAME,
            Self::Save { .. } => "kennel-save",
            Self::Merge { .. } => Self::MERGE_NAME,
            Self::Land { .. } => Self::LAND_NAME,
            Self::Remove { .. } => Self::REMOVE_NAME,
        }
    }

    /// The command to run, program first. Refuses what no script should be given.
    pub fn command(&self) -> Result<Vec<OsString>, StepError> {
        let place = self.place();
        place.check()?;
        let mut command: Vec<OsString> =
            vec!["sh".into(), "-c".into(), script(self.script()).into(), self.name().into()];
        command.push(place.repository.clone().into());
        command.push(place.story.0.clone().into());
        let place_of_worktree = |second: String| -> [OsString; 3] {
            [second.into(), place.base.clone().into(), place.worktree.clone().into()]
        };
        match self {
            Self::Prepare { copy, setup, .. } => {
                command.extend(place_of_worktree(place.branch()));
                command.push(lines(copy)?.into());
                command.extend(words(setup)?);
            }
            Self::Look { .. } => {
                let prefix = &place.branch_prefix;
                let whole = if prefix.is_empty() { place.branch() } else { prefix.clone() };
                command.extend(place_of_worktree(whole));
            }
            Self::Save { at, .. } => {
                command.extend(place_of_worktree(place.branch()));
                command.push(ref_time(*at).into());
                command.push((at.0 / 1000).to_string().into());
            }
            Self::Merge { mode, .. } => {
                command.extend(place_of_worktree(place.branch()));
                let mode = match mode {
                    MergeMode::Rebase => "rebase",
                    MergeMode::Merge => "merge",
                };
                command.push(mode.into());
            }
            Self::Land { old, new, .. } => {
                command.push(place.base.clone().into());
                for commit in [old, new] {
                    if !is_commit(commit) {
                        return Err(StepError::Commit(commit.clone()));
                    }
                    command.push(commit.into());
                }
            }
            Self::Remove { saved, teardown, .. } => {
                command.extend(place_of_worktree(place.branch()));
                command.push(saved_ref(saved.as_deref())?.into());
                command.extend(words(teardown)?);
            }
        }
        Ok(command)
    }

    /// What a run of the command came to. Its standard output is the script's alone: what git and
    /// the user's commands print goes to the other stream.
    #[must_use]
    pub fn read(&self, status: ExitStatus, stdout: &[u8]) -> StepOutcome {
        StepOutcome::read(status, stdout)
    }

    /// The name of the step that a command is.
    pub(crate) fn name_in(command: &[Text]) -> Option<&str> {
        command.get(NAME_AT)?.0.to_str()
    }

    /// Where a command that is a landing puts the base.
    pub(crate) fn lands(command: &[Text]) -> Option<&str> {
        let named = Self::name_in(command) == Some(Self::LAND_NAME);
        let new = command.get(LANDS_AT).filter(|_| named)?.0.to_str()?;
        is_commit(new).then_some(new)
    }

    /// The branch of a command that is a removal, and the ref under which work was saved before it.
    pub(crate) fn removes(command: &[Text]) -> Option<(&str, Option<&str>)> {
        let named = Self::name_in(command) == Some(Self::REMOVE_NAME);
        let word = |at: usize| command.get(at).filter(|_| named)?.0.to_str();
        Some((word(BRANCH_AT)?, word(SAVED_AT).filter(|saved| !saved.is_empty())))
    }

    /// Leaves the script out of a command that is kept: it is the same for all, and long.
    pub(crate) fn without_script(command: &mut [Text]) {
        let is_ours = |word: &Text| word.0.as_encoded_bytes().starts_with(BEGINS.as_bytes());
        if let Some(word) = command.get_mut(SCRIPT_AT).filter(|word| is_ours(word)) {
            word.0 = "(script)".into();
        }
    }

    /// The word for it in the name of a slot.
    pub(crate) fn word(&self) -> &'static str {
        self.name().trim_start_matches("kennel-")
    }

    /// Where it is done.
    pub(crate) fn place(&self) -> &Place {
        match self {
            Self::Prepare { place, .. }
            | Self::Look { place }
            | Self::Save { place, .. }
            | Self::Merge { place, .. }
            | Self::Land { place, .. }
            | Self::Remove { place, .. } => place,
        }
    }

    fn script(&self) -> &'static str {
        match self {
            Self::Prepare { .. } => PREPARE,
            Self::Look { .. } => LOOK,
            Self::Save { .. } => SAVE,
            Self::Merge { .. } => MERGE,
            Self::Land { .. } => LAND,
            Self::Remove { .. } => REMOVE,
        }
    }
}

/// Bounds, what all share, and the step, without comments: the command line is kept with the run.
fn script(step: &str) -> String {
    let bounds = format!(
        "{BEGINS}{LOCK_TRIES}\nLOCK_PAUSE={LOCK_PAUSE_SECONDS}\n\
         TEXT_BYTES={MAX_TEXT_BYTES}\nSAME_SECOND={MAX_SAVED_AT_ONCE}\n\
         FULL_KB={FULL_KB}\n"
    );
    let said = |line: &&str| !line.trim_start().starts_with('#') && !line.trim().is_empty();
    let lines = COMMON.lines().chain(step.lines()).filter(said);
    lines.fold(bounds, |all, line| all + line + "\n")
}

/// A moment as the last part of a ref: no colons, and names sort as times do.
fn ref_time(at: Time) -> String {
    at.to_string().chars().filter(|c| !matches!(c, '-' | ':')).collect()
}

fn lines(patterns: &[String]) -> Result<String, StepError> {
    match patterns.iter().find(|p| p.contains(['\n', '\0'])) {
        Some(bad) => Err(StepError::Pattern(bad.clone())),
        None => Ok(patterns.join("\n")),
    }
}

/// Each command as one argument, in quotes that a shell takes away.
fn words(commands: &[Vec<String>]) -> Result<Vec<OsString>, StepError> {
    let quote = |word: &String| format!("'{}'", word.replace('\'', "'\\''"));
    let mut all = Vec::new();
    for command in commands {
        if command.is_empty() || command.iter().any(|word| word.contains('\0')) {
            return Err(StepError::Command(command.join(" ")));
        }
        all.push(command.iter().map(quote).collect::<Vec<_>>().join(" ").into());
    }
    Ok(all)
}

fn saved_ref(saved: Option<&str>) -> Result<String, StepError> {
    match saved {
        None => Ok(String::new()),
        Some(name) if name.starts_with("refs/kennel/saved/") && is_branch_name(name) => {
            Ok(name.to_owned())
        }
        Some(name) => Err(StepError::SavedRef(name.to_owned())),
    }
}

/// A whole object name, of either of git's hashes.
fn is_commit(id: &str) -> bool {
    matches!(id.len(), 40 | 64) && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// What no script is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepError {
    /// Not an id of a story.
    Story(String),
    /// Not an absolute path without `.`, `..`, `//` and a `/` at its end.
    Path(PathBuf),
    /// Not a name for a branch.
    Branch(String),
    /// The story's branch would be the base.
    BranchIsBase(String),
    /// Not one line.
    Pattern(String),
    /// No command.
    Command(String),
    /// Not a whole object name.
    Commit(String),
    /// Not a ref that a save made.
    SavedRef(String),
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Story(id) => write!(
                f,
                "{id:?} is no id of a story: use up to {MAX_STORY_BYTES} of a-z, 0-9 and single - \
                 between them"
            ),
            Self::Path(path) => write!(
                f,
                "{} is not a plain absolute path: give it from / on, without . and ..",
                path.display()
            ),
            Self::Branch(name) => write!(f, "{name:?} is no name for a branch of git"),
            Self::BranchIsBase(name) => {
                write!(f, "a story's branch cannot be the base {name:?}: set a branch prefix")
            }
            Self::Pattern(pattern) => {
                write!(f, "{pattern:?} is not one line of patterns: give one entry for each")
            }
            Self::Command(command) => write!(f, "{command:?} is no command: give its words"),
            Self::Commit(id) => write!(f, "{id:?} is no commit: give all of its digits"),
            Self::SavedRef(name) => {
                write!(f, "{name:?} is not what a save made: those are below refs/kennel/saved/")
            }
        }
    }
}

impl std::error::Error for StepError {}

/// What a step came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// The worktree is there and the story's.
    Prepared {
        /// False if it was there before.
        made: bool,
        /// Its commit.
        head: String,
        /// The base's commit, now.
        base: String,
        /// The worktree, as git calls it: links in the way to it are followed.
        path: PathBuf,
    },
    /// How things stand.
    Looked(Box<Looked>),
    /// Work is under a ref.
    Saved(Saved),
    /// All is in the base.
    NothingToSave,
    /// The branch stands on the base, or has it merged.
    Merged {
        /// What the gates are to run on.
        head: String,
        /// The base it stands on: `old` for [`Step::Land`].
        base: String,
        /// How many commits it has beyond that.
        commits: u64,
    },
    /// It clashed, and all is as it was before.
    Conflict {
        /// The base it clashed with.
        base: String,
        /// The files, as git names them (in quotes if a name is strange).
        files: Vec<String>,
        /// What git said, then the clashing parts; cut at a bound.
        text: String,
    },
    /// The base is at the new commit.
    Landed {
        /// Which is this.
        head: String,
    },
    /// The worktree is gone.
    Removed {
        /// True if its branch has commits that the base has not, and so was kept.
        branch_kept: bool,
    },
    /// Nothing was lost and nothing is half done: the reason, and words for people.
    Refused {
        /// Which reason.
        why: Refused,
        /// What it was about.
        text: String,
        /// Files that git could not save, if it was about that.
        unsaved: Vec<String>,
    },
    /// It was killed, or said nothing that can be read. The same step can be run again.
    Broken {
        /// How it ended.
        status: ExitStatus,
        /// What is wrong.
        why: String,
    },
}

impl StepOutcome {
    /// What any step came to.
    pub(crate) fn read(status: ExitStatus, stdout: &[u8]) -> Self {
        let broken = |why: String| Self::Broken { status, why };
        let code = match status {
            ExitStatus::Exited(code) => code,
            ExitStatus::Signaled(_) | ExitStatus::Unknown(_) => {
                return broken("it did not come to its end: run it again".to_owned());
            }
        };
        let text = String::from_utf8_lossy(stdout);
        let Some(line) = text.lines().next_back().and_then(|line| line.strip_prefix(MARK)) else {
            return broken("it said nothing of its outcome; see its standard error".to_owned());
        };
        match serde_json::from_str::<Line>(line) {
            Ok(line) if line.is_told_with(code) => line.into(),
            Ok(_) => broken(format!("exit code {code} does not go with what it said")),
            Err(e) => broken(format!("its last line cannot be read: {e}")),
        }
    }
}

/// What a look saw.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Looked {
    /// The base's commit.
    pub base: String,
    /// The worktree, if it is there.
    pub worktree: Option<WorktreeState>,
    /// The main checkout.
    pub main: Fingerprint,
    /// A landing was cut off and is not undone yet: files of the checkout may be half moved.
    #[serde(default)]
    pub landing: bool,
}

/// Work that was kept.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Saved {
    /// Where.
    #[serde(rename = "ref")]
    pub reference: String,
    /// The commit it names.
    pub commit: String,
    /// True if some of it was in no commit before.
    pub dirty: bool,
    /// How many commits are kept that the base has not.
    pub commits: u64,
    /// What git could not take in: unreadable files, repositories inside the worktree.
    #[serde(deserialize_with = "hex_names")]
    pub unsaved: Vec<String>,
}

/// Why a step was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refused {
    /// No `git` in `PATH`.
    GitMissing,
    /// The directory is not the top of a repository.
    NotARepository,
    /// It is a worktree of another checkout.
    NotMainCheckout,
    /// Nobody has made a commit yet.
    NoCommits,
    /// There is no such base branch.
    BaseGone,
    /// The branch's name belongs to somebody else.
    BranchTaken,
    /// The branch is checked out elsewhere.
    BranchBusy,
    /// Something else is at the worktree's path.
    PathTaken,
    /// The worktree would be an untracked part of the main checkout.
    InsideCheckout,
    /// The worktree is locked, not by us.
    LockedByOther,
    /// The worktree is on another branch.
    WrongBranch,
    /// There is no worktree.
    WorktreeGone,
    /// A command of the setup failed.
    SetupFailed,
    /// A command of the teardown failed.
    TeardownFailed,
    /// Changes that are in no commit.
    Dirty,
    /// A rebase, merge or the like goes on.
    InProgress,
    /// The branch has no commit that the base has not.
    NothingAhead,
    /// The branch has commits that the base has not.
    Unmerged,
    /// What was said to be saved is not, or cannot be.
    NotSaved,
    /// The base is not where the gates ran any more.
    BaseMoved,
    /// The new commit does not stand on the old one.
    NotFastForward,
    /// A landing was cut off while git wrote the files of a checkout, and somebody has been there
    /// since.
    HalfLanded,
    /// Somebody holds one of git's locks, or died with it. It is never broken.
    LockHeld,
    /// No room.
    DiskFull,
    /// The repository belongs to another user (`safe.directory`).
    UnsafeOwnership,
    /// May not be written.
    PermissionDenied,
    /// Cannot be written.
    ReadOnly,
    /// git failed for another reason, which the text tells.
    GitFailed,
}

/// A worktree as a look found it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct WorktreeState {
    /// Its commit.
    pub head: String,
    /// Its branch; empty if it is on none.
    #[serde(deserialize_with = "hex_text")]
    pub branch: String,
    /// Tracked files that differ from the commit.
    pub changed: u64,
    /// Files that git does not know and does not ignore.
    pub untracked: u64,
    /// Files with a conflict that is not resolved.
    pub unmerged: u64,
    /// Commits the base has not.
    pub ahead: u64,
    /// Commits of the base that it has not.
    pub behind: u64,
    /// What it is in the middle of.
    pub operation: Operation,
    /// Names of git's locks in its own git directory, which somebody holds or died with.
    #[serde(deserialize_with = "hex_names")]
    pub locks: Vec<String>,
}

/// What a worktree can be in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "git's own words")]
pub enum Operation {
    None,
    Rebase,
    Am,
    Merge,
    CherryPick,
    Revert,
    Bisect,
}

/// The main checkout, as far as an agent of a story must leave it alone. Everything but the counts
/// is a hash or a name: compared, never read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Fingerprint {
    /// Its commit.
    pub head: String,
    /// The ref it is on; empty if on none.
    #[serde(deserialize_with = "hex_text")]
    pub branch: String,
    /// How many stashes there are.
    pub stash: u64,
    /// All branches but the base and those of stories.
    pub branches: String,
    /// What is staged.
    pub index: String,
    /// Which files differ.
    pub status: String,
    /// What those files hold.
    pub contents: String,
}

/// What changed in the main checkout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drift {
    /// The base branch moved.
    Base,
    /// Another commit is checked out.
    Head,
    /// Another branch is checked out.
    Branch,
    /// Something was staged or unstaged.
    Index,
    /// Files appeared, vanished, or began or ceased to differ.
    Status,
    /// Files that differed before differ in another way.
    Contents,
    /// Something was stashed, or taken from the stash.
    Stash,
    /// A branch that is no story's was made, moved or deleted.
    Branches,
}

/// What drifted between two looks. `landed` is where we ourselves have put the base meanwhile: a
/// base that is there, and a checkout that went along with it, did not drift. Where a landing was
/// cut off, nobody can say whose the changes of files are, and it is undone soon.
#[must_use]
pub fn drift(before: &Looked, now: &Looked, landed: Option<&str>) -> Vec<Drift> {
    let moved = now.base != before.base;
    let base_kept = !moved || landed == Some(now.base.as_str());
    let on_base = before.main.head == before.base && now.main.head == now.base;
    let along = moved && base_kept && on_base;
    let half_moved = before.landing || now.landing;
    let (before, now) = (&before.main, &now.main);
    // A checkout that was as clean, or as dirty, as before has the index of its new commit.
    let index_along = along && now.status == before.status && now.contents == before.contents;
    let changed = [
        (!base_kept, Drift::Base),
        (before.head != now.head && !along, Drift::Head),
        (before.branch != now.branch, Drift::Branch),
        (before.index != now.index && !index_along && !half_moved, Drift::Index),
        (before.status != now.status && !half_moved, Drift::Status),
        (before.contents != now.contents && !half_moved, Drift::Contents),
        (before.stash != now.stash, Drift::Stash),
        (before.branches != now.branches, Drift::Branches),
    ];
    changed.into_iter().filter_map(|(is, what)| is.then_some(what)).collect()
}

/// The line of a script, as it is written.
#[derive(Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
enum Line {
    Prepared {
        made: bool,
        head: String,
        base: String,
        #[serde(deserialize_with = "hex_path")]
        path: PathBuf,
    },
    Looked(Box<Looked>),
    Saved(Saved),
    NothingToSave,
    Merged {
        head: String,
        base: String,
        commits: u64,
    },
    Conflict {
        base: String,
        #[serde(deserialize_with = "hex_names")]
        files: Vec<String>,
        #[serde(deserialize_with = "hex_text")]
        text: String,
    },
    Landed {
        head: String,
    },
    Removed {
        branch_kept: bool,
    },
    Refused {
        why: Refused,
        #[serde(deserialize_with = "hex_text")]
        text: String,
        #[serde(default, deserialize_with = "hex_names")]
        unsaved: Vec<String>,
    },
}

impl Line {
    /// A step that is not done ends with 10, or 127 for want of git; one that is, with 0.
    fn is_told_with(&self, code: i32) -> bool {
        match self {
            Self::Refused { why: Refused::GitMissing, .. } => code == 127,
            Self::Refused { .. } | Self::Conflict { .. } => code == 10,
            Self::Prepared { .. }
            | Self::Looked(_)
            | Self::Saved(_)
            | Self::NothingToSave
            | Self::Merged { .. }
            | Self::Landed { .. }
            | Self::Removed { .. } => code == 0,
        }
    }
}

impl From<Line> for StepOutcome {
    fn from(line: Line) -> Self {
        match line {
            Line::Prepared { made, head, base, path } => Self::Prepared { made, head, base, path },
            Line::Looked(looked) => Self::Looked(looked),
            Line::Saved(saved) => Self::Saved(saved),
            Line::NothingToSave => Self::NothingToSave,
            Line::Merged { head, base, commits } => Self::Merged { head, base, commits },
            Line::Conflict { base, files, text } => Self::Conflict { base, files, text },
            Line::Landed { head } => Self::Landed { head },
            Line::Removed { branch_kept } => Self::Removed { branch_kept },
            Line::Refused { why, text, unsaved } => Self::Refused { why, text, unsaved },
        }
    }
}

fn hex_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(from)?;
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
    bytes.ok_or_else(|| de::Error::custom(format!("{text:?} is not hexadecimal")))
}

fn hex_path<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    Ok(PathBuf::from(OsString::from_vec(hex_bytes(from)?)))
}

fn hex_text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(String::from_utf8_lossy(&hex_bytes(from)?).into_owned())
}

fn hex_names<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let text = hex_text(from)?;
    Ok(text.split('\n').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place {
            repository: "/r".into(),
            story: StorySlug::new("fix-it").expect("a slug"),
            branch_prefix: "kennel/".to_owned(),
            base: "main".to_owned(),
            worktree: "/w/fix-it".into(),
        }
    }

    #[test]
    fn only_slugs_are_stories() {
        for good in ["a", "fix-it-2", "7"] {
            assert!(StorySlug::new(good).is_ok(), "{good}");
        }
        let long = "x".repeat(MAX_STORY_BYTES + 1);
        for bad in ["", "-a", "a-", "a--b", "A", "a/b", "a b", "..", "a\n", "é", &long] {
            let told = StorySlug::new(bad).expect_err(bad).to_string();
            assert!(told.contains("a-z"), "{told}");
        }
    }

    #[test]
    fn a_kept_command_says_what_it_is_and_where_it_lands_without_its_script() {
        let (old, new) = ("1".repeat(40), "2".repeat(40));
        let land = Step::Land { place: place(), old, new: new.clone() };
        for (step, lands) in [(land, Some(&*new)), (Step::Look { place: place() }, None)] {
            let mut kept: Vec<Text> =
                step.command().expect("it is one").into_iter().map(Text).collect();
            let whole = kept.clone();
            Step::without_script(&mut kept);
            for command in [&whole, &kept] {
                assert_eq!(Step::name_in(command), Some(step.name()));
                assert_eq!(Step::lands(command), lands);
            }
            assert!(kept.iter().all(|word| word.0.len() < 100), "{kept:?}");
        }
        let mut own: Vec<Text> =
            ["sh", "-c", "echo LOCK_TRIES=1", "x"].map(|word| Text(word.into())).into();
        let before = own.clone();
        Step::without_script(&mut own);
        assert_eq!(own, before, "a command of somebody else's is kept whole");
    }

    #[test]
    fn what_would_mislead_git_is_refused_before_anything_runs() {
        let look = |place: Place| Step::Look { place }.command().expect_err("refused").to_string();
        for path in ["r", "/r/../x", "/r/", "/", "//r", "/r/./x", ""] {
            assert!(look(Place { repository: path.into(), ..place() }).contains("absolute"));
            assert!(look(Place { worktree: path.into(), ..place() }).contains("absolute"));
        }
        for base in ["-x", "", "a..b", "a b", "a/", "/a", "a.lock", "@", "a@{1}", "a\nb", ".a"] {
            assert!(look(Place { base: base.into(), ..place() }).contains("branch"), "{base}");
        }
        let same = Place { base: "kennel/fix-it".into(), ..place() };
        assert!(look(same).contains("prefix"));
        let land = |old: &str| Step::Land { place: place(), old: old.into(), new: "a".repeat(40) };
        for bad in ["", "HEAD", "--all", &"A".repeat(40), &"a".repeat(41)] {
            assert!(land(bad).command().is_err(), "{bad}");
        }
        assert!(land(&"0".repeat(64)).command().is_ok());
        for saved in ["refs/heads/main", "HEAD", "refs/kennel/saved/a b"] {
            let saved = Some(saved.to_owned());
            assert!(Step::Remove { place: place(), saved, teardown: vec![] }.command().is_err());
        }
    }

    #[test]
    fn a_command_keeps_its_words_whatever_they_are() {
        let setup = vec![vec!["echo".to_owned(), "it's $HOME; \"`\\".to_owned()]];
        let step = Step::Prepare { place: place(), copy: vec!["a".into(), "b".into()], setup };
        let command = step.command().expect("a command");
        assert_eq!(command[..2], ["sh", "-c"]);
        let rest = ["kennel-prepare", "/r", "fix-it", "kennel/fix-it", "main", "/w/fix-it", "a\nb"];
        assert_eq!(command[3..10], rest);
        assert_eq!(command[10], r#"'echo' 'it'\''s $HOME; "`\'"#);
        let none = Step::Prepare { place: place(), copy: vec![], setup: vec![vec![]] };
        assert!(none.command().is_err());
    }

    #[test]
    fn an_outcome_is_believed_only_with_its_exit_code() {
        let step = Step::Look { place: place() };
        let line = |text: &str| format!("noise\n{MARK}{text}\n").into_bytes();
        let landed = line(r#"{"outcome":"landed","head":"a"}"#);
        let read = |code, out: &[u8]| step.read(ExitStatus::Exited(code), out);
        assert_eq!(read(0, &landed), StepOutcome::Landed { head: "a".into() });
        assert!(matches!(read(10, &landed), StepOutcome::Broken { .. }));
        let killed = step.read(ExitStatus::Signaled(9), &landed);
        assert!(matches!(killed, StepOutcome::Broken { .. }));
        for bad in ["", "{}", r#"{"outcome":"new"}"#] {
            assert!(matches!(read(0, &line(bad)), StepOutcome::Broken { .. }), "{bad}");
        }
        assert!(matches!(read(0, b"nothing"), StepOutcome::Broken { .. }));
        let refused = line(r#"{"outcome":"refused","why":"lock_held","text":"c3a90a"}"#);
        let why = Refused::LockHeld;
        let expected = StepOutcome::Refused { why, text: "é\n".into(), unsaved: vec![] };
        assert_eq!(read(10, &refused), expected);
        let odd = line(r#"{"outcome":"refused","why":"lock_held","text":"c3a"}"#);
        assert!(matches!(read(10, &odd), StepOutcome::Broken { .. }));
    }

    #[test]
    fn drift_is_named_and_our_own_landing_is_none() {
        let print = |head: &str, index: &str| Fingerprint {
            head: head.into(),
            index: index.into(),
            ..Fingerprint::default()
        };
        let seen = |main: &Fingerprint| Looked {
            base: main.head.clone(),
            worktree: None,
            main: main.clone(),
            landing: false,
        };
        let (a, b) = (seen(&print("a", "1")), seen(&print("b", "2")));
        assert_eq!(drift(&a, &a, None), []);
        assert_eq!(drift(&a, &b, Some("b")), []);
        let moved = [Drift::Base, Drift::Head, Drift::Index];
        assert_eq!(drift(&a, &b, None), moved);
        assert_eq!(drift(&a, &b, Some("c")), moved);
        // The base was landed, and the checkout was changed beside it.
        let dirty = seen(&Fingerprint { status: "x".into(), ..b.main.clone() });
        assert_eq!(drift(&a, &dirty, Some("b")), [Drift::Index, Drift::Status]);
        // Another landing was cut off and is half there: what files are like tells nothing.
        let half = Looked { landing: true, ..dirty };
        assert_eq!(drift(&a, &half, None), [Drift::Base, Drift::Head]);
        assert_eq!(drift(&half, &b, None), []);
        let other = seen(&Fingerprint {
            branch: "r".into(),
            contents: "c".into(),
            stash: 1,
            branches: "d".into(),
            ..a.main.clone()
        });
        let all = [Drift::Branch, Drift::Contents, Drift::Stash, Drift::Branches];
        assert_eq!(drift(&a, &other, None), all);
    }
}
