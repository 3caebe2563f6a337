//! Whether a story can still go on by itself. Owns this one decision, from one look at all stories
//! of a repository; asks nobody anything.
//!
//! Whoever waits must not wait for what only a person can move, nor turn away from what a clock, a
//! run or another story will.

use std::collections::{BTreeMap, BTreeSet};

use kennel_daemon::wire;

/// What can come of a story without anybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing<'a> {
    /// It is done, or gone.
    Over,
    /// Something is done for it, or will be.
    GoesOn,
    /// Nothing is, until somebody acts: on this story, which is the one itself or one that it
    /// depends on, because of this.
    Rests {
        /// Which.
        at: &'a str,
        /// What is the matter with it: it "is blocked".
        why: String,
    },
}

/// The standing of each story, by its id. `stuck` are runs that were stopped and cannot be ended.
pub(super) fn standings<'a>(
    stories: &'a [wire::Story],
    stuck: &BTreeSet<String>,
) -> BTreeMap<&'a str, Standing<'a>> {
    let by_id = stories.iter().map(|story| (story.id.as_str(), story)).collect();
    let is_stuck = |story: &wire::Story| story.run.as_ref().is_some_and(|run| stuck.contains(run));
    // Stages and agents are freed by steps that end, and by nothing else.
    let frees = stories.iter().any(|story| story.step.is_some() && !is_stuck(story));
    let mut look = Look { by_id, stuck, frees, found: BTreeMap::new(), open: BTreeSet::new() };
    for story in stories {
        look.standing(story);
    }
    look.found
}

/// True if a story was archived or removed.
pub(super) fn is_gone(story: &wire::Story) -> bool {
    matches!(story.stage.as_str(), "archived" | "removed")
}

struct Look<'a, 's> {
    by_id: BTreeMap<&'a str, &'a wire::Story>,
    stuck: &'s BTreeSet<String>,
    frees: bool,
    found: BTreeMap<&'a str, Standing<'a>>,
    /// Whom we are looking at: nobody is waited for by whom it waits for.
    open: BTreeSet<&'a str>,
}

impl<'a> Look<'a, '_> {
    fn standing(&mut self, story: &'a wire::Story) -> Standing<'a> {
        let id = story.id.as_str();
        if let Some(found) = self.found.get(id) {
            return found.clone();
        }
        if !self.open.insert(id) {
            return rests(story, "waits for itself");
        }
        let standing = self.decide(story);
        self.open.remove(id);
        self.found.insert(id, standing.clone());
        standing
    }

    fn decide(&mut self, story: &'a wire::Story) -> Standing<'a> {
        if story.done || is_gone(story) {
            return Standing::Over;
        }
        // Also while its run is being stopped: what comes after that waits for a person.
        if let Some(hold) = &story.hold {
            return rests(story, &held(hold, story.hold_because.as_deref()));
        }
        if let Some(run) = story.run.as_ref().filter(|run| self.stuck.contains(*run)) {
            return rests(story, &format!("waits for its run {run}, which cannot be ended"));
        }
        let Some(code) = story.waits_code.as_deref() else { return Standing::GoesOn };
        let told = || story.waits_for.clone().unwrap_or_else(|| format!("waits ({code})"));
        match code {
            "retry" | "refused" | "misfire" | "paused" | "ready" | "stray" => Standing::GoesOn,
            "stage_full" | "agents_busy" if self.frees => Standing::GoesOn,
            "stage_full" | "agents_busy" => {
                rests(story, "waits for an agent, and none of those that are busy can be ended")
            }
            "dependencies" => self.of_dependencies(story),
            "unconfigured" => rests(story, &format!("cannot be begun: {}", told())),
            "ended" => rests(story, &format!("ended in {} and is not done", story.stage)),
            "move" => rests(story, &format!("waits in {} for a move", story.stage)),
            "stage_gone" => {
                rests(story, &format!("is in {}, which is no stage any more", story.stage))
            }
            // Of a later daemon, perhaps: who cannot tell does not wait for ever.
            _ => rests(story, &told()),
        }
    }

    fn of_dependencies(&mut self, story: &'a wire::Story) -> Standing<'a> {
        for id in &story.depends_on {
            let Some(other) = self.by_id.get(id.as_str()).copied() else {
                return Standing::Rests { at: id, why: "is not there".to_owned() };
            };
            if other.done {
                continue;
            }
            match self.standing(other) {
                Standing::GoesOn => {}
                Standing::Over => return rests(other, "is gone and was not done"),
                Standing::Rests { at, why } => return Standing::Rests { at, why },
            }
        }
        Standing::GoesOn
    }
}

fn rests<'a>(story: &'a wire::Story, why: &str) -> Standing<'a> {
    Standing::Rests { at: &story.id, why: why.to_owned() }
}

fn held(hold: &str, because: Option<&str>) -> String {
    match because {
        Some(because) => format!("is {hold}: {because}"),
        None => format!("is {hold}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use kennel_daemon::Time;

    use super::*;

    /// A story in its stage, of which nothing else is known.
    pub(in super::super) fn story(id: &str, stage: &str) -> wire::Story {
        wire::Story {
            id: id.to_owned(),
            title: format!("The {id}"),
            text: None,
            project: "p".to_owned(),
            repository: "/srv/p".to_owned(),
            stage: stage.to_owned(),
            progress: "fresh".to_owned(),
            hold: None,
            hold_because: None,
            done: false,
            agent: None,
            pinned: None,
            step: None,
            run: None,
            stopping: false,
            retries: 0,
            retries_used: 0,
            worktree: None,
            branch: None,
            waits_for: None,
            waits_code: None,
            waits_until: None,
            depends_on: Vec::new(),
            priority: 0,
            ceilings: wire::StoryCeilings::default(),
            used: wire::StoryUsed::default(),
            leaving: None,
            added_at: Time(0),
            history: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn waits(id: &str, code: &str) -> wire::Story {
        wire::Story { waits_code: Some(code.to_owned()), ..story(id, "current") }
    }

    fn works(id: &str, run: &str) -> wire::Story {
        let (step, run) = (Some("agent".to_owned()), Some(run.to_owned()));
        wire::Story { step, run, ..story(id, "current") }
    }

    fn after(id: &str, others: &[&str]) -> wire::Story {
        let depends_on = others.iter().map(|other| (*other).to_owned()).collect();
        wire::Story { depends_on, ..waits(id, "dependencies") }
    }

    fn done(id: &str) -> wire::Story {
        wire::Story { done: true, ..waits(id, "ended") }
    }

    fn held_one(id: &str) -> wire::Story {
        let (hold, hold_because) = (Some("blocked".to_owned()), Some("it failed".to_owned()));
        wire::Story { hold, hold_because, ..waits(id, "held") }
    }

    /// `+` it goes on, `.` it is over, else who has to be acted on and why.
    fn words(stories: &[wire::Story], id: &str) -> String {
        let stuck = BTreeSet::from(["stuck".to_owned()]);
        match &standings(stories, &stuck)[id] {
            Standing::Over => ".".to_owned(),
            Standing::GoesOn => "+".to_owned(),
            Standing::Rests { at, why } => format!("{at} {why}"),
        }
    }

    #[test]
    fn what_can_go_on_by_itself_is_told_from_what_a_person_has_to_move() {
        let stopping = wire::Story { stopping: true, ..works("a", "r") };
        let lost = wire::Story { hold: Some("blocked".to_owned()), ..stopping.clone() };
        let leaving = wire::Story { leaving: Some("archive".to_owned()), ..works("a", "r") };
        let waits_for = Some("nobody has trusted it".to_owned());
        let unconfigured = wire::Story { waits_for, ..waits("a", "unconfigured") };
        let table = [
            (vec![done("a")], "."),
            (vec![story("a", "archived")], "."),
            (vec![story("a", "removed")], "."),
            (vec![works("a", "r")], "+"),
            (vec![stopping], "+"),
            (vec![leaving], "+"),
            (vec![lost], "a is blocked"),
            (vec![works("a", "stuck")], "a waits for its run stuck, which cannot be ended"),
            (vec![held_one("a")], "a is blocked: it failed"),
            (vec![waits("a", "ended")], "a ended in current and is not done"),
            (vec![waits("a", "move")], "a waits in current for a move"),
            (vec![waits("a", "stage_gone")], "a is in current, which is no stage any more"),
            (vec![waits("a", "retry")], "+"),
            (vec![waits("a", "refused")], "+"),
            (vec![waits("a", "misfire")], "+"),
            (vec![waits("a", "paused")], "+"),
            (vec![waits("a", "ready")], "+"),
            (vec![waits("a", "stray")], "+"),
            (vec![waits("a", "of_the_future")], "a waits (of_the_future)"),
            (vec![unconfigured], "a cannot be begun: nobody has trusted it"),
            (vec![waits("a", "agents_busy"), works("b", "r")], "+"),
            (vec![waits("a", "stage_full"), works("b", "r")], "+"),
            (
                vec![waits("a", "agents_busy"), works("b", "stuck")],
                "a waits for an agent, and none of those that are busy can be ended",
            ),
            (vec![after("a", &["b"]), works("b", "r")], "+"),
            (vec![after("a", &["b"]), done("b")], "+"),
            (vec![after("a", &["b"]), waits("b", "paused")], "+"),
            (vec![after("a", &["b"]), waits("b", "move")], "b waits in current for a move"),
            (vec![after("a", &["b"])], "b is not there"),
            (vec![after("a", &["b"]), story("b", "archived")], "b is gone and was not done"),
            (
                vec![after("a", &["b", "c"]), works("b", "r"), held_one("c")],
                "c is blocked: it failed",
            ),
            (
                vec![after("a", &["b"]), after("b", &["c"]), held_one("c")],
                "c is blocked: it failed",
            ),
            (vec![after("a", &["b"]), after("b", &["a"])], "a waits for itself"),
        ];
        for (stories, expected) in table {
            assert_eq!(words(&stories, "a"), expected, "{stories:#?}");
        }
    }

    #[test]
    fn a_long_chain_of_dependencies_has_one_reason() {
        let mut stories: Vec<wire::Story> =
            (1..500).map(|n| after(&format!("s{n}"), &[&format!("s{}", n + 1)])).collect();
        stories.push(held_one("s500"));
        assert_eq!(words(&stories, "s1"), "s500 is blocked: it failed");
    }
}
