//! What to run: plain data, checked once, handed to the keeper.
//!
//! Owns: the shape of a [`Spec`] and the rules a value must keep. Never touches the system: whether
//! the program exists is found out by running it.

use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::num::NonZeroU16;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Signal;
use crate::limits::Limits;

/// The environment variable that marks every process of a run with the run's id.
pub const COOKIE: &str = "KENNEL_RUN";

/// Name of a run: what its directory, its cgroup and its cookie are called after.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunId(String);

/// The longest id: it becomes part of file and cgroup names.
const MAX_ID_BYTES: usize = 64;

impl RunId {
    /// Accepts letters, digits, `-` and `_`, so that an id is safe in a path, a cgroup and a shell.
    pub fn new(id: impl Into<String>) -> Result<Self, SpecError> {
        let id = id.into();
        let fine = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if id.is_empty() || id.len() > MAX_ID_BYTES || !id.bytes().all(fine) {
            return Err(SpecError::RunId(id));
        }
        Ok(Self(id))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The entry every process of the run carries in its environment.
    pub(crate) fn cookie(&self) -> String {
        format!("{COOKIE}={}", self.0)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for RunId {
    type Error = SpecError;

    fn try_from(id: String) -> Result<Self, SpecError> {
        Self::new(id)
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> Self {
        id.0
    }
}

/// What to run and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The run's id.
    pub run: RunId,
    /// The program, looked up in the run's `PATH` unless it holds a slash.
    #[serde(with = "os_string")]
    pub program: OsString,
    /// Its arguments, without the program itself.
    #[serde(with = "os_strings")]
    pub args: Vec<OsString>,
    /// Its environment.
    pub env: Environment,
    /// Where it starts; the keeper's starter's own directory if not said.
    #[serde(default, with = "os_path")]
    pub cwd: Option<PathBuf>,
    /// Pipes, or a terminal.
    pub streams: Streams,
    /// What happens to the rest of the cohort when the leader exits by itself.
    pub on_exit: OnExit,
    /// The signal that asks the leader to end.
    pub ask: Signal,
    /// How long it may take to end after it was asked, unless a stop says otherwise.
    pub grace: Duration,
    /// How much output is kept of each stream: the first half and the last half of this.
    pub keep_bytes: u64,
    /// The strongest containment to use; less is used where it cannot be had.
    pub containment: crate::Containment,
    /// Bounds on it.
    #[serde(default)]
    pub limits: Limits,
    /// What whoever started it wants to find again beside its record, in their own words; at most
    /// [`MAX_LABEL_BYTES`].
    #[serde(default)]
    pub label: Option<String>,
    /// What its meter is told, in the words of whoever made the meter.
    #[serde(default)]
    pub meter: Option<String>,
    /// How many files its programs may have open, unless they raise that themselves; as many as the
    /// starter may if not said.
    #[serde(default)]
    pub descriptors: Option<u64>,
}

/// The time between asking and forcing if nobody said otherwise.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(10);
/// The longest grace: a stop that takes longer is none.
pub const MAX_GRACE: Duration = Duration::from_secs(30 * 24 * 3600);
/// The longest label: it has its place in the record beside the identities.
pub const MAX_LABEL_BYTES: usize = 4 << 10;
/// How much of each output stream is kept if nobody said otherwise.
pub const DEFAULT_KEEP_BYTES: u64 = 256 << 20;
/// The least that can be kept: head and tail need room for at least one chunk each.
pub const MIN_KEEP_BYTES: u64 = 64 << 10;

impl Spec {
    /// A run of `program` with everything else at its default: pipes, no input, our environment.
    pub fn new(run: RunId, program: impl Into<OsString>) -> Self {
        Self {
            run,
            program: program.into(),
            args: Vec::new(),
            env: Environment::default(),
            cwd: None,
            streams: Streams::Pipes { stdin: Stdin::Closed },
            on_exit: OnExit::Sweep,
            ask: Signal::TERM,
            grace: DEFAULT_GRACE,
            keep_bytes: DEFAULT_KEEP_BYTES,
            containment: crate::Containment::Cgroup,
            limits: Limits::default(),
            label: None,
            meter: None,
            descriptors: None,
        }
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Refuses what no kernel could run, naming the part and the fix.
    pub fn check(&self) -> Result<(), SpecError> {
        if self.program.is_empty() {
            return Err(SpecError::EmptyProgram);
        }
        let strings = std::iter::once(&self.program).chain(&self.args);
        if let Some(bad) = strings.into_iter().find(|s| has_nul(s)) {
            return Err(SpecError::NulByte(bad.clone()));
        }
        if let Some(cwd) = self.cwd.as_ref().filter(|c| has_nul(c.as_os_str())) {
            return Err(SpecError::NulByte(cwd.clone().into_os_string()));
        }
        for (name, value) in &self.env.set {
            if name.is_empty() || name.as_bytes().contains(&b'=') {
                return Err(SpecError::EnvName(name.clone()));
            }
            if let Some(bad) = [name, value].into_iter().find(|s| has_nul(s)) {
                return Err(SpecError::NulByte(bad.clone()));
            }
        }
        if let Some(label) = self.label.as_ref().filter(|label| label.len() > MAX_LABEL_BYTES) {
            return Err(SpecError::Label(label.len()));
        }
        if self.grace > MAX_GRACE {
            return Err(SpecError::Grace(self.grace));
        }
        if self.keep_bytes < MIN_KEEP_BYTES {
            return Err(SpecError::KeepBytes(self.keep_bytes));
        }
        Ok(())
    }
}

fn has_nul(text: &OsStr) -> bool {
    text.as_bytes().contains(&0)
}

/// The environment of a run, set exactly: what it starts from, and what is added on top.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// What it starts from.
    pub base: EnvBase,
    /// What is set on top; a later entry of the same name wins.
    #[serde(with = "os_pairs")]
    pub set: Vec<(OsString, OsString)>,
}

/// What an environment starts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvBase {
    /// The environment of the process that called [`start`](crate::start).
    #[default]
    Inherit,
    /// Nothing.
    Clear,
}

impl Environment {
    /// The final list: base, additions, cookie; each name once, the last one said.
    pub(crate) fn resolve(
        &self,
        inherited: impl Iterator<Item = (OsString, OsString)>,
        run: &RunId,
    ) -> Vec<(OsString, OsString)> {
        let base: Vec<_> = match self.base {
            EnvBase::Inherit => inherited.collect(),
            EnvBase::Clear => Vec::new(),
        };
        let cookie = (OsString::from(COOKIE), OsString::from(run.as_str()));
        let mut list: Vec<(OsString, OsString)> = Vec::with_capacity(base.len() + 8);
        let mut place = std::collections::HashMap::new();
        for (name, value) in base.into_iter().chain(self.set.iter().cloned()).chain([cookie]) {
            match place.get(&name) {
                Some(&at) => {
                    let slot: &mut (OsString, OsString) = &mut list[at];
                    slot.1 = value;
                }
                None => {
                    place.insert(name.clone(), list.len());
                    list.push((name, value));
                }
            }
        }
        list
    }
}

/// What the leader's three standard streams are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Streams {
    /// Two pipes, each kept in files of its own, and an input.
    Pipes {
        /// What standard input is.
        stdin: Stdin,
    },
    /// One terminal for all three, kept as a recording.
    Terminal {
        /// Its size.
        size: TerminalSize,
    },
}

/// What standard input is when output goes to pipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// Nothing to read: end of file at once.
    Closed,
    /// A pipe that is written to, and closed, through the keeper.
    Pipe,
}

/// Rows and columns of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Lines.
    pub rows: NonZeroU16,
    /// Characters in a line.
    pub cols: NonZeroU16,
}

impl Default for TerminalSize {
    fn default() -> Self {
        const ROWS: NonZeroU16 = NonZeroU16::new(24).unwrap();
        const COLS: NonZeroU16 = NonZeroU16::new(80).unwrap();
        Self { rows: ROWS, cols: COLS }
    }
}

/// What happens to the rest of the cohort when the leader exits by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExit {
    /// It is forced to end at once.
    #[default]
    Sweep,
    /// It is awaited; the run ends when the last one has.
    Wait,
}

/// Why a spec was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpecError {
    /// Not usable as a run's id.
    RunId(String),
    /// There is nothing to run.
    EmptyProgram,
    /// A NUL byte in something that becomes a C string.
    NulByte(OsString),
    /// Not usable as the name of an environment variable.
    EnvName(OsString),
    /// Fewer bytes of output kept than one head and one tail need.
    KeepBytes(u64),
    /// A label longer than [`MAX_LABEL_BYTES`].
    Label(usize),
    /// A grace longer than [`MAX_GRACE`].
    Grace(Duration),
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunId(id) => write!(
                f,
                "run id {id:?} is not usable: use 1 to {MAX_ID_BYTES} letters, digits, '-' or '_'"
            ),
            Self::EmptyProgram => f.write_str("the program's name is empty: name a command to run"),
            Self::NulByte(text) => {
                write!(f, "{text:?} holds a NUL byte, which no argument or variable can")
            }
            Self::EnvName(name) => {
                write!(f, "{name:?} is not a variable's name: it is empty or holds '='")
            }
            Self::Label(n) => {
                write!(f, "the label has {n} bytes and may have {MAX_LABEL_BYTES}")
            }
            Self::Grace(grace) => {
                write!(f, "a grace of {grace:?} is too long: allow at most {MAX_GRACE:?}")
            }
            Self::KeepBytes(n) => {
                write!(
                    f,
                    "{n} bytes of output are too few to keep: allow at least {MIN_KEEP_BYTES}"
                )
            }
        }
    }
}

impl std::error::Error for SpecError {}

/// A C string of something [`Spec::check`] found free of NUL bytes.
pub(crate) fn c_string(text: &OsStr) -> Result<CString, SpecError> {
    CString::new(text.as_bytes()).map_err(|_| SpecError::NulByte(text.to_owned()))
}

/// System strings in JSON: a string where they are text, else a list of bytes. Nothing is lost.
mod os_string {
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::{OsStrExt, OsStringExt};

    use serde::de::{Error, SeqAccess, Visitor};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(text: &OsStr, out: S) -> Result<S::Ok, S::Error> {
        match text.to_str() {
            Some(text) => out.serialize_str(text),
            None => out.collect_seq(text.as_bytes()),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<OsString, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = OsString;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a list of bytes")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<OsString, E> {
                Ok(OsString::from(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<OsString, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = seq.next_element::<u8>()? {
                    bytes.push(byte);
                }
                Ok(OsString::from_vec(bytes))
            }
        }
        from.deserialize_any(Either)
    }
}

/// A path that may be left out.
mod os_path {
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::os_strings::One;

    pub(super) fn serialize<S: Serializer>(
        path: &Option<PathBuf>,
        out: S,
    ) -> Result<S::Ok, S::Error> {
        path.as_ref().map(|path| One(path.clone().into_os_string())).serialize(out)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<One>::deserialize(from)?.map(|one| one.0.into()))
    }
}

/// Lists of system strings.
mod os_strings {
    use std::ffi::OsString;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    pub(super) struct One(#[serde(with = "super::os_string")] pub(super) OsString);

    pub(super) fn serialize<S: Serializer>(list: &[OsString], out: S) -> Result<S::Ok, S::Error> {
        out.collect_seq(list.iter().map(|s| One(s.clone())))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<OsString>, D::Error> {
        Ok(Vec::<One>::deserialize(from)?.into_iter().map(|one| one.0).collect())
    }
}

/// Lists of pairs of system strings.
mod os_pairs {
    use std::ffi::OsString;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::os_strings::One;

    pub(super) fn serialize<S: Serializer>(
        list: &[(OsString, OsString)],
        out: S,
    ) -> Result<S::Ok, S::Error> {
        out.collect_seq(list.iter().map(|(a, b)| (One(a.clone()), One(b.clone()))))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<(OsString, OsString)>, D::Error> {
        let pairs = Vec::<(One, One)>::deserialize(from)?;
        Ok(pairs.into_iter().map(|(a, b)| (a.0, b.0)).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn spec() -> Spec {
        Spec::new(RunId::new("r1").unwrap(), "true")
    }

    #[test]
    fn ids_that_could_leave_their_directory_are_refused() {
        for id in ["", ".", "..", "a/b", "a b", "ä", "a\0b", &"x".repeat(65)] {
            assert!(RunId::new(id).is_err(), "{id:?}");
        }
        assert!(RunId::new("r-1_B").is_ok());
    }

    #[test]
    fn bytes_that_are_no_text_survive_the_journey() {
        let odd = OsString::from_vec(vec![b'a', 0xff, b'z']);
        let mut spec = spec().arg(odd.clone());
        spec.env.set.push(("K".into(), odd.clone()));
        spec.cwd = Some(odd.into());
        let json = serde_json::to_vec(&spec).unwrap();
        assert_eq!(serde_json::from_slice::<Spec>(&json).unwrap(), spec);
    }

    #[test]
    fn the_environment_is_what_was_said_with_the_cookie_on_top() {
        let mut env = Environment { base: EnvBase::Clear, set: vec![] };
        let run = RunId::new("r1").unwrap();
        let inherited = || [("A".into(), "1".into())].into_iter();
        assert_eq!(env.resolve(inherited(), &run), [("KENNEL_RUN".into(), "r1".into())]);
        env.base = EnvBase::Inherit;
        env.set = vec![("A".into(), "2".into()), ("KENNEL_RUN".into(), "forged".into())];
        let expected = [("A".into(), "2".into()), ("KENNEL_RUN".into(), "r1".into())];
        assert_eq!(env.resolve(inherited(), &run), expected);
    }

    #[test]
    fn what_no_kernel_could_run_is_refused_by_name() {
        let mut nul = spec();
        nul.args.push("a\0b".into());
        assert!(matches!(nul.check(), Err(SpecError::NulByte(_))));
        let mut name = spec();
        name.env.set.push(("A=B".into(), "x".into()));
        assert!(matches!(name.check(), Err(SpecError::EnvName(_))));
        let mut few = spec();
        few.keep_bytes = 1;
        assert!(few.check().unwrap_err().to_string().contains("65536"));
        assert_eq!(Spec::new(RunId::new("r").unwrap(), "").check(), Err(SpecError::EmptyProgram));
    }
}
