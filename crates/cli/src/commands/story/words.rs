//! Stories in words: a table, a description, what came of a request, what has changed. Owns every
//! sentence about a story.

use std::time::Duration;

use kennel_daemon::{Time, wire};

use super::rest::{Standing, is_gone};
use crate::duration::words;
use crate::render::{DIM, GREEN, RED, Style, aligned, visible};

/// The heading of a listing.
const COLUMNS: [&str; 9] =
    ["ID", "STAGE", "HOLD", "AGENT", "RUN", "RETRIES", "COST", "TITLE", "WAITS-FOR"];
/// The column that is coloured.
const STAGE_COLUMN: usize = 1;

/// All stories of a repository, and under them what keeps them from going on.
pub(super) fn overview(stories: &wire::Stories, now: Time, style: Style) -> String {
    let mut text = match stories.stories.as_slice() {
        [] => "no stories here: `kennel story add TITLE` makes one".to_owned(),
        some => table(some, style),
    };
    for note in &stories.notes {
        text.push_str(&format!("\nnote: {}", visible(note)));
    }
    for wire::PausedProvider { provider, until } in &stories.paused {
        let left = words(Duration::from_millis(until.0.saturating_sub(now.0)));
        text.push_str(&format!(
            "\nnote: {provider} takes no more until {until}, in {left}; `kennel story unblock \
             --provider {provider}` has it asked sooner"
        ));
    }
    text
}

fn table(stories: &[wire::Story], style: Style) -> String {
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    rows.extend(stories.iter().map(row));
    aligned(&rows, style, STAGE_COLUMN, |n| stories.get(n).and_then(colour))
}

fn colour(story: &wire::Story) -> Option<&'static str> {
    if story.done || is_gone(story) {
        Some(DIM)
    } else if story.hold.is_some() {
        Some(RED)
    } else {
        story.step.as_ref().map(|_| GREEN)
    }
}

fn row(story: &wire::Story) -> [String; 9] {
    let none = || "-".to_owned();
    let said = |text: &Option<String>| text.as_deref().map_or_else(none, visible);
    let used = &story.used;
    [
        story.id.clone(),
        visible(&story.stage),
        said(&story.hold),
        said(&story.agent.clone().or_else(|| story.pinned.as_ref().map(|n| format!("({n})")))),
        said(&story.run),
        story.retries_used.to_string(),
        if used.turns == 0 && used.cost_usd == 0.0 { none() } else { dollars(used.cost_usd) },
        visible(&story.title),
        // What is done waits for nothing, unless it is to go and cannot.
        said(&story.waits_for.clone().filter(|_| !story.done || story.hold.is_some())),
    ]
}

fn dollars(amount: f64) -> String {
    format!("${amount:.2}")
}

/// Everything about one story.
pub(super) fn description(story: &wire::Story, now: Time) -> String {
    let mut lines =
        vec![("story", story.id.clone()), ("title", story.title.clone()), ("stage", stage(story))];
    let because = story.hold_because.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    lines.extend(story.hold.as_ref().map(|hold| ("hold", format!("{hold}{because}"))));
    lines.extend(story.leaving.as_deref().map(|how| ("leaving", leaving(how).to_owned())));
    lines.extend(now_done(story).map(|text| ("now", text)));
    lines.extend(story.waits_for.clone().filter(|_| !story.done).map(|why| {
        let until = story.waits_until.map(|until| {
            let left = words(Duration::from_millis(until.0.saturating_sub(now.0)));
            format!(" (until {until}, in {left})")
        });
        ("waits", format!("{why}{}", until.unwrap_or_default()))
    }));
    if !story.depends_on.is_empty() {
        lines.push(("after", story.depends_on.join(", ")));
    }
    lines.extend(story.pinned.clone().map(|agent| ("agent", agent)));
    if story.priority != 0 {
        lines.push(("priority", story.priority.to_string()));
    }
    lines.push(("used", used(story)));
    lines.extend(story.branch.clone().map(|branch| ("branch", branch)));
    lines.extend(story.worktree.clone().map(|tree| ("worktree", tree)));
    lines.push(("repository", story.repository.clone()));
    lines.push(("added", story.added_at.to_string()));
    lines.extend(story.notes.iter().map(|note| ("note", note.clone())));
    let mut all: Vec<String> =
        lines.iter().map(|(name, value)| format!("{name:<10} {}", visible(value))).collect();
    let told = story.text.as_deref().unwrap_or_default().trim_end();
    all.extend(block("text", told.lines().map(visible)));
    all.extend(block("history", story.history.iter().map(happened)));
    all.join("\n")
}

/// Its stage, and how far it has come there if it has.
fn stage(story: &wire::Story) -> String {
    match story.progress.as_str() {
        "fresh" => story.stage.clone(),
        progress => format!("{} ({progress})", story.stage),
    }
}

/// Lines beside one name.
fn block(name: &str, lines: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    lines.enumerate().map(move |(n, line)| {
        let name = if n == 0 { name } else { "" };
        format!("{name:<10} {line}").trim_end().to_owned()
    })
}

fn happened(line: &wire::StoryLine) -> String {
    let wire::StoryLine { at, text, run, .. } = line;
    let run = run.as_ref().map(|run| format!(" (run {run})")).unwrap_or_default();
    format!("{at}  {}{run}", visible(text))
}

fn now_done(story: &wire::Story) -> Option<String> {
    let step = story.step.as_deref()?;
    let who = story.agent.as_ref().map(|agent| format!(" by {agent}")).unwrap_or_default();
    let run = story.run.as_ref().map(|run| format!(", run {run}")).unwrap_or_default();
    let stopping = if story.stopping { ", which is being stopped" } else { "" };
    Some(format!("{step}{who}{run}{stopping}"))
}

/// What its runs used, of what they may.
fn used(story: &wire::Story) -> String {
    let wire::StoryCeilings { max_turns, max_budget_usd, max_retries } = story.ceilings;
    let of = |max: Option<String>| max.map(|max| format!(" of {max}")).unwrap_or_default();
    format!(
        "{}{} tool turns, {}{}, {}{} retries ({} in this stage)",
        story.used.turns,
        of(max_turns.map(|max| max.to_string())),
        dollars(story.used.cost_usd),
        of(max_budget_usd.map(dollars)),
        story.retries_used,
        of(max_retries.map(|max| max.to_string())),
        story.retries,
    )
}

fn leaving(how: &str) -> &str {
    match how {
        "archive" => "archived",
        "remove" => "removed",
        other => other,
    }
}

/// Where a story stands after somebody asked for something, in one line.
pub(super) fn standing(story: &wire::Story) -> String {
    let wire::Story { id, stage, hold, run, stopping, waits_for, .. } = story;
    let text = if is_gone(story) {
        format!("{id}: {stage}")
    } else if let Some(how) = story.leaving.as_deref().map(leaving) {
        match (run, hold, waits_for) {
            (_, Some(hold), _) => format!("{id}: is to be {how}, and waits because it is {hold}"),
            (Some(run), None, _) => {
                format!("{id}: is to be {how} once its run {run} has ended")
            }
            (None, None, Some(why)) => format!("{id}: is to be {how}; {why}"),
            (None, None, None) => format!("{id}: is to be {how} once its work is safe"),
        }
    } else {
        let state = match hold {
            Some(hold) => format!("{id}: {hold} in {stage}"),
            None => format!("{id}: in {stage}"),
        };
        match (run, stopping, waits_for) {
            (Some(run), true, _) => format!("{state}; its run {run} is being stopped"),
            (Some(run), false, _) => format!("{state}; its run is {run}"),
            (None, _, Some(why)) if hold.is_none() => format!("{state}; {why}"),
            (None, _, _) => state,
        }
    };
    visible(&text)
}

/// The same, and below it what is wrong with its configuration: it may be why nothing follows.
pub(super) fn came_of_it(story: &wire::Story) -> String {
    let notes = story.notes.iter().map(|note| format!("\nnote: {}", visible(note)));
    format!("{}{}", standing(story), notes.collect::<String>())
}

/// What is different about a story, a line each; none if nothing is that somebody would watch for.
pub(super) fn changes(old: Option<&wire::Story>, new: &wire::Story) -> Vec<String> {
    let id = &new.id;
    let Some(old) = old else { return vec![visible(&format!("{id}: added to {}", new.stage))] };
    let mut lines = Vec::new();
    if old.retries_used < new.retries_used {
        let why = new.waits_for.as_ref().filter(|_| new.waits_code.as_deref() == Some("retry"));
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        lines.push(format!("{id}: retry {}{why}", new.retries_used));
    }
    if old.stage != new.stage {
        lines.push(format!("{id}: {} -> {}", old.stage, new.stage));
    }
    if old.hold != new.hold {
        lines.push(match (&new.hold, &new.hold_because) {
            (Some(hold), Some(because)) => format!("{id}: {hold}: {because}"),
            (Some(hold), None) => format!("{id}: {hold}"),
            (None, _) => format!("{id}: not held any more"),
        });
    }
    if old.leaving != new.leaving {
        lines.extend(new.leaving.as_deref().map(|how| format!("{id}: is to be {}", leaving(how))));
    }
    let begun = old.run != new.run || old.step != new.step;
    let now = (new.step.as_deref(), &new.agent, &new.run);
    if let ((Some("agent"), Some(agent), Some(run)), true) = (now, begun) {
        lines.push(format!("{id}: {agent} works on it, run {run}"));
    }
    let worth_telling = matches!(
        new.waits_code.as_deref(),
        Some("paused" | "refused" | "unconfigured" | "misfire" | "stray")
    );
    if worth_telling && old.waits_code != new.waits_code {
        lines.extend(new.waits_for.as_ref().map(|why| format!("{id}: {why}")));
    }
    lines.iter().map(|line| visible(line)).collect()
}

/// Why a story is not done and will not be by itself.
pub(super) fn rests(story: &wire::Story, standing: &Standing<'_>) -> Option<String> {
    let id = story.id.as_str();
    let text = match standing {
        Standing::Over | Standing::GoesOn => return None,
        Standing::Rests { at, why } if *at == id => format!("{id} {why}"),
        Standing::Rests { at, why } if story.depends_on.iter().any(|other| other == at) => {
            format!("{id} waits for {at}, which {why}")
        }
        Standing::Rests { at, why } => format!("{id} waits in the end for {at}, which {why}"),
    };
    Some(visible(&text))
}

#[cfg(test)]
mod tests {
    use super::super::rest::tests::story;
    use super::*;

    const PLAIN: Style = Style { width: None, colour: false };

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn at_work() -> wire::Story {
        wire::Story {
            agent: some("coder"),
            step: some("agent"),
            run: some("p_login_3"),
            ..story("login", "current")
        }
    }

    fn board(stories: Vec<wire::Story>) -> wire::Stories {
        wire::Stories {
            project: "p".to_owned(),
            repository: "/srv/p".to_owned(),
            stages: vec!["current".to_owned(), "done".to_owned()],
            stories,
            paused: Vec::new(),
            notes: Vec::new(),
            seq: 7,
        }
    }

    #[test]
    fn a_listing_is_a_table_with_what_is_wrong_below() {
        let blocked = wire::Story {
            title: "Log \x1b[2J out".to_owned(),
            hold: some("blocked"),
            waits_for: some("it is blocked"),
            retries_used: 3,
            used: wire::StoryUsed { turns: 4, cost_usd: 0.256, tokens: None },
            ..story("logout", "qa")
        };
        let mut stories = board(vec![at_work(), blocked]);
        stories.notes.push("kennel.toml:3: stage.agents: no such agent".to_owned());
        let until = Time(90_000);
        stories.paused.push(wire::PausedProvider { provider: "claude".to_owned(), until });
        let text = overview(&stories, Time(60_000), PLAIN);
        assert_eq!(
            text,
            "\
ID      STAGE    HOLD     AGENT  RUN        RETRIES  COST   TITLE         WAITS-FOR
login   current  -        coder  p_login_3  0        -      The login     -
logout  qa       blocked  -      -          3        $0.26  Log \u{fffd}[2J out  it is blocked
note: kennel.toml:3: stage.agents: no such agent
note: claude takes no more until 1970-01-01T00:01:30.000Z, in 30.0 s; `kennel story unblock \
--provider claude` has it asked sooner"
        );
        let empty = overview(&board(Vec::new()), Time(0), PLAIN);
        assert_eq!(empty, "no stories here: `kennel story add TITLE` makes one");
    }

    #[test]
    fn the_colour_of_a_stage_says_whether_somebody_has_to_look() {
        let style = Style { width: Some(24), colour: true };
        let text = overview(&board(vec![at_work()]), Time(0), style);
        let line = text.lines().last().unwrap_or_default();
        assert_eq!(line, "login  \x1b[32mcurrent\x1b[0m  -     c~");
    }

    #[test]
    fn everything_about_a_story_is_shown() {
        let line = |at, text: &str, run| wire::StoryLine {
            seq: 1,
            at: Time(at),
            text: text.to_owned(),
            run,
        };
        let story = wire::Story {
            text: some("Users can log in.\n\nWith a password.\n"),
            pinned: some("coder"),
            depends_on: vec!["users".to_owned(), "store".to_owned()],
            ceilings: wire::StoryCeilings {
                max_turns: Some(40),
                max_budget_usd: Some(2.5),
                max_retries: None,
            },
            retries: 1,
            retries_used: 2,
            waits_for: some("is tried again"),
            waits_until: Some(Time(61_000)),
            branch: some("kennel/login"),
            history: vec![line(0, "added", None), line(5, "coder began", some("p_login_1"))],
            ..story("login", "current")
        };
        assert_eq!(
            description(&story, Time(1000)),
            "\
story      login
title      The login
stage      current
waits      is tried again (until 1970-01-01T00:01:01.000Z, in 1 m 0 s)
after      users, store
agent      coder
used       0 of 40 tool turns, $0.00 of $2.50, 2 retries (1 in this stage)
branch     kennel/login
repository /srv/p
added      1970-01-01T00:00:00.000Z
text       Users can log in.

           With a password.
history    1970-01-01T00:00:00.000Z  added
           1970-01-01T00:00:00.005Z  coder began (run p_login_1)"
        );
    }

    #[test]
    fn what_came_of_a_request_is_one_line() {
        let is = |change: fn(&mut wire::Story), expected: &str| {
            let mut story = at_work();
            change(&mut story);
            assert_eq!(standing(&story), expected);
        };
        is(|_| {}, "login: in current; its run is p_login_3");
        is(|s| s.stopping = true, "login: in current; its run p_login_3 is being stopped");
        is(|s| s.stage = "archived".to_owned(), "login: archived");
        is(
            |s| s.leaving = some("archive"),
            "login: is to be archived once its run p_login_3 has ended",
        );
        is(
            |s| (s.leaving, s.run) = (some("remove"), None),
            "login: is to be removed once its work is safe",
        );
        is(
            |s| (s.hold, s.stopping) = (some("frozen"), true),
            "login: frozen in current; its run p_login_3 is being stopped",
        );
        is(|s| (s.hold, s.run) = (some("blocked"), None), "login: blocked in current");
        is(
            |s| (s.run, s.waits_for) = (None, some("all agents are busy")),
            "login: in current; all agents are busy",
        );
    }

    #[test]
    fn a_change_is_told_by_what_is_different() {
        let told = |change: fn(&mut wire::Story)| {
            let mut new = at_work();
            change(&mut new);
            changes(Some(&at_work()), &new)
        };
        assert_eq!(changes(None, &at_work()), ["login: added to current"]);
        assert_eq!(told(|_| {}), [""; 0]);
        assert_eq!(told(|s| s.stage = "qa".to_owned()), ["login: current -> qa"]);
        let blocked = |s: &mut wire::Story| {
            (s.hold, s.hold_because) = (some("blocked"), some("gate 0 failed"));
        };
        assert_eq!(told(blocked), ["login: blocked: gate 0 failed"]);
        let back = |s: &mut wire::Story| {
            s.retries_used = 1;
            (s.waits_code, s.waits_for) = (some("retry"), some("gate 1 failed"));
            s.stage = "backlog".to_owned();
        };
        let expected = ["login: retry 1: gate 1 failed", "login: current -> backlog"];
        assert_eq!(told(back), expected);
        assert_eq!(
            told(|s| s.run = some("p_login_4")),
            ["login: coder works on it, run p_login_4"]
        );
        assert_eq!(told(|s| s.leaving = some("remove")), ["login: is to be removed"]);
        let paused = |s: &mut wire::Story| {
            (s.step, s.run) = (None, None);
            (s.waits_code, s.waits_for) = (some("paused"), some("claude takes no more"));
        };
        assert_eq!(told(paused), ["login: claude takes no more"]);
    }
}
