//! From a story as it is believed to one as it is shown. Owns this one conversion; sentences are
//! in `words`.

use std::collections::BTreeMap;
use std::path::Path;

use kennel_supervisor::story::{
    Ceilings, Gone, Hold, Leave, ProjectKey, Provider, Reason, Stage, Stories, Story, StoryId,
    StoryRef, Tree,
};

use super::MICROS;
use super::now::Troubles;
use super::project::Known;
use super::words;
use crate::api::wire;
use crate::home::Home;
use crate::live::Live;
use crate::store::kept::Standing;
use crate::store::story_format::step_of;
use crate::store::{KeptWords, Line, format};
use crate::time::Time;

/// All that is shown of stories is seen through this.
pub(crate) struct Look<'a> {
    pub(crate) stories: Stories,
    pub(crate) project: &'a ProjectKey,
    pub(crate) repository: &'a Path,
    /// How it is configured; none if nothing of that may be used now.
    pub(crate) known: Option<&'a Known>,
    pub(crate) home: &'a Home,
    pub(crate) kept: &'a BTreeMap<String, KeptWords>,
    pub(crate) troubles: &'a Troubles,
    pub(crate) live: &'a Live,
    pub(crate) now_ms: u64,
}

impl Look<'_> {
    fn story(&self, id: &StoryId) -> StoryRef {
        StoryRef::new(self.project, id)
    }

    /// The stages of its pipeline, in order.
    pub(crate) fn stages(&self) -> &[Stage] {
        self.stories.pipeline(self.project).map_or(&[], |pipeline| pipeline.stages.as_slice())
    }

    /// Every story, in the order of stages, and in each the sooner first; then those that are gone.
    pub(crate) fn all(&self, gone: bool) -> Vec<wire::Story> {
        let stages = self.stages();
        let order = |stage: &str| {
            stages.iter().position(|known| known.name.as_str() == stage).unwrap_or(stages.len())
        };
        let mut all: Vec<(&StoryId, &Story)> = self.stories.stories(self.project).collect();
        all.sort_by_key(|(_, story)| {
            (order(story.stage.as_str()), std::cmp::Reverse(story.priority), story.added)
        });
        let mut reasons: BTreeMap<StoryId, Reason> =
            self.stories.all_waiting(self.project, self.now_ms).into_iter().collect();
        let mut shown: Vec<wire::Story> = all
            .into_iter()
            .map(|(id, known)| self.known(&self.story(id), known, reasons.remove(id)))
            .collect();
        if gone {
            let ids = self.kept.keys().map(|id| self.story(&id.as_str().into()));
            let gone = ids.filter(|story| self.stories.gone(story).is_some());
            shown.extend(gone.filter_map(|story| self.one(&story)));
        }
        shown
    }

    /// One story, also one that is gone.
    pub(crate) fn one(&self, story: &StoryRef) -> Option<wire::Story> {
        match (self.stories.story(story), self.stories.gone(story)) {
            (Some(known), _) => {
                let reason = self.stories.why_waiting(story, self.now_ms);
                Some(self.known(story, known, reason))
            }
            (None, Some(gone)) => Some(self.gone(story, gone)),
            (None, None) => None,
        }
    }

    /// Who takes no more for a while.
    pub(crate) fn paused(&self) -> Vec<wire::PausedProvider> {
        let mut seen: Vec<&Provider> = Vec::new();
        let mut paused = Vec::new();
        let agents = self.stories.pipeline(self.project).map(|pipeline| &pipeline.agents);
        for agent in agents.into_iter().flatten() {
            if seen.contains(&&agent.provider) {
                continue;
            }
            seen.push(&agent.provider);
            if let Some(until) = self.stories.paused_until(&agent.provider, self.now_ms) {
                let provider = agent.provider.to_string();
                paused.push(wire::PausedProvider { provider, until: Time(until) });
            }
        }
        paused
    }

    fn blank(&self, story: &StoryRef) -> wire::Story {
        let kept = self.kept.get(story.id.as_str());
        wire::Story {
            id: story.id.to_string(),
            title: kept.map(|kept| kept.title.clone()).unwrap_or_default(),
            text: None,
            project: story.project.to_string(),
            repository: self.repository.display().to_string(),
            stage: String::new(),
            progress: String::new(),
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
            added_at: Time(kept.map_or(0, |kept| kept.added_ms)),
            history: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn gone(&self, story: &StoryRef, gone: Gone) -> wire::Story {
        let (stage, done) = match gone {
            Gone::Archived { done } => ("archived", done),
            Gone::Removed => ("removed", false),
        };
        wire::Story { stage: stage.to_owned(), done, ..self.blank(story) }
    }

    fn known(&self, story: &StoryRef, known: &Story, reason: Option<Reason>) -> wire::Story {
        let trouble = self.troubles.of(story);
        let place = self.known.and_then(|known| known.place(self.home, story).ok());
        let has_tree = known.tree != Tree::None;
        let mut shown = wire::Story {
            stage: known.stage.to_string(),
            progress: words::progress(&known.progress),
            done: known.done,
            pinned: known.pinned.as_ref().map(ToString::to_string),
            retries: known.retries.get(&known.stage).copied().unwrap_or(0),
            retries_used: known.retries_used,
            worktree: place
                .as_ref()
                .filter(|_| has_tree)
                .map(|place| place.worktree.display().to_string()),
            branch: place.filter(|_| has_tree).map(|place| place.branch()),
            depends_on: known.depends_on.iter().map(ToString::to_string).collect(),
            priority: known.priority,
            ceilings: ceilings_of(&known.ceilings),
            used: wire::StoryUsed {
                turns: known.used.turns,
                cost_usd: known.used.money_micros as f64 / MICROS,
                tokens: None,
            },
            leaving: known.leaving.map(|how| match how {
                Leave::Archive => "archive".to_owned(),
                Leave::Remove => "remove".to_owned(),
            }),
            ..self.blank(story)
        };
        if let Some(hold) = &known.hold {
            let (word, because) = match hold {
                Hold::Frozen => ("frozen", "somebody wants nothing done for it".to_owned()),
                Hold::Blocked(why) => ("blocked", with(words::blocked(why), trouble.clone())),
            };
            shown.hold = Some(word.to_owned());
            shown.hold_because = Some(because);
        }
        self.add_step(story, known, &mut shown);
        if let Some(reason) = reason {
            add_wait(known, &reason, trouble, &mut shown);
        }
        shown
    }

    fn add_step(&self, story: &StoryRef, known: &Story, shown: &mut wire::Story) {
        let Some(step) = &known.step else { return };
        let of = kennel_supervisor::story::StepId { story: story.clone(), number: step.number };
        shown.step = Some(words::work(&step.work));
        shown.agent = step.work.agent().map(|(agent, _)| agent.to_string());
        let run = of.run();
        if let Some(live) = self.live.get(run.as_str()) {
            shown.stopping = matches!(live.state, Standing::Stopping | Standing::Stuck);
            shown.run = Some(run.to_string());
        } else if let Some(trouble) = self.troubles.of_step(story) {
            // It is tried again by every reconcile, and may need somebody all the same.
            let work = words::work(&step.work);
            shown.waits_for = Some(format!("its {work} cannot be seen to: {trouble}"));
            shown.waits_code = Some("refused".to_owned());
        }
    }
}

fn add_wait(known: &Story, reason: &Reason, trouble: Option<String>, shown: &mut wire::Story) {
    let (code, sentence, until_ms) = words::reason(reason);
    let trouble = trouble.filter(|_| known.wait.is_some());
    shown.waits_for = Some(match &shown.hold_because {
        Some(because) => because.clone(),
        None => with(sentence, trouble),
    });
    shown.waits_code = Some(code.to_owned());
    shown.waits_until = until_ms.map(Time);
}

fn with(sentence: String, trouble: Option<String>) -> String {
    match trouble {
        Some(trouble) => format!("{sentence}: {trouble}"),
        None => sentence,
    }
}

fn ceilings_of(known: &Ceilings) -> wire::StoryCeilings {
    wire::StoryCeilings {
        max_turns: known.turns,
        max_budget_usd: known.money_micros.map(|micros| micros as f64 / MICROS),
        max_retries: known.retries,
    }
}

/// A line of the journal as a story's past shows it.
pub(crate) fn line(line: &Line) -> Option<wire::StoryLine> {
    let format::Fact::Story(fact) = &*line.fact else { return None };
    let fact = fact.of();
    let text = words::fact(&fact)?;
    let run = step_of(&fact).map(|step| step.run().to_string());
    Some(wire::StoryLine { seq: line.seq, at: line.at, text, run })
}
