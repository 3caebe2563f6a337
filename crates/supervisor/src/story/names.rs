//! What things are called: opaque names, each of a type of its own, cheap to copy. Owns the one
//! way from a step to the id of its run.

use alloc::string::String;
use alloc::sync::Arc;
use core::fmt::{self, Write};

use crate::state::RunId;

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                Self(name.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

names! {
    /// A repository.
    ProjectKey;
    /// A story's id, unique in its project.
    StoryId;
    /// A stage's name, unique in its pipeline.
    StageName;
    /// An agent's name, unique in its pipeline.
    AgentName;
    /// What an agent's model is called.
    Model;
    /// Who serves a model: what is paused together.
    Provider;
    /// A session of an agent's client.
    Session;
    /// Where the last words of a failed step are kept.
    Tail;
    /// Which title and text a story has: they are kept elsewhere, this tells two of them apart.
    Words;
}

/// A story of a project.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoryRef {
    /// Whose.
    pub project: ProjectKey,
    /// Which.
    pub id: StoryId,
}

/// A step of a story: no number is given twice, and no id of a story is either.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepId {
    /// Whose.
    pub story: StoryRef,
    /// The how many-th, from 1 on.
    pub number: u32,
}

impl StoryRef {
    /// A story by its two names.
    #[must_use]
    pub fn new(project: &ProjectKey, id: &StoryId) -> Self {
        Self { project: project.clone(), id: id.clone() }
    }

    pub(crate) fn step(&self, number: u32) -> StepId {
        StepId { story: self.clone(), number }
    }
}

impl StepId {
    /// The id of the step's run: the same for ever, no other step's, and fit for a file name.
    #[must_use]
    pub fn run(&self) -> RunId {
        let mut id = String::new();
        for name in [self.story.project.as_str(), self.story.id.as_str()] {
            escape(name, &mut id);
            id.push('_');
        }
        // Writing to a string does not fail.
        let _ = write!(id, "{}", self.number);
        RunId::from(id.as_str())
    }
}

impl fmt::Display for StoryRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.project, self.id)
    }
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} step {}", self.story, self.number)
    }
}

/// Small letters, digits and `-` stay; any other byte is `X` and two digits, so that two names
/// never become one, and none has the `_` that stands between them.
fn escape(name: &str, to: &mut String) {
    for byte in name.bytes() {
        if byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' {
            to.push(char::from(byte));
        } else {
            let _ = write!(to, "X{byte:02x}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn no_two_steps_have_the_same_run() {
        let names = ["a", "A", "a.1", "a_2e1", "aX2e1", "a/1", "1", "", "ä", "a-1", "a_1"];
        let mut seen = BTreeSet::new();
        for project in names {
            for id in names {
                for number in [1, 11] {
                    let story = StoryRef::new(&project.into(), &id.into());
                    let run = story.step(number).run();
                    assert!(seen.insert(run.clone()), "{run} twice");
                }
            }
        }
        let run = StoryRef::new(&"p".into(), &"108".into()).step(7).run();
        assert_eq!(run.as_str(), "p_108_7");
    }
}
