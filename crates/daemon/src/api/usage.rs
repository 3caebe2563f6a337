//! `GET /v1/usage`: what runs used, by run, story, agent, day or model.
//!
//! Owns: the adding up. What one run used is its meter's word; what nobody counted is said to be
//! uncounted, and is not nothing.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Query, State};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::error::{ApiError, BadQuery};
use super::{App, wire};
use crate::meter::{Account, AccountTokens};
use crate::store::Page;
use crate::store::kept::KeptRun;
use crate::time::Time;

/// Runs read from the store at once.
const PAGE: usize = 1000;
/// Characters of a moment that are its day.
const DAY_LENGTH: usize = 10;

#[derive(Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum By {
    #[default]
    Run,
    Story,
    Agent,
    Day,
    Model,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct UsageQuery {
    /// What to add up by.
    #[serde(default)]
    by: By,
}

/// What all runs that are kept have used.
#[utoipa::path(get, path = "/v1/usage", params(UsageQuery),
    responses((status = 200, body = wire::UsageReport)))]
pub(super) async fn usage(
    State(app): State<App>,
    query: Result<Query<UsageQuery>, BadQuery>,
) -> Result<Json<wire::UsageReport>, ApiError> {
    let Query(UsageQuery { by }) = query?;
    let mut lines: BTreeMap<String, wire::UsageLine> = BTreeMap::new();
    let mut total = wire::UsageLine { key: "total".to_owned(), ..wire::UsageLine::default() };
    let mut before = None;
    loop {
        let page = app.store.list(Page { before: before.take(), limit: PAGE }).await?;
        for kept in &page {
            let run = app.live.get(&kept.id).unwrap_or_else(|| kept.clone());
            let account = run.usage_now().and_then(|json| serde_json::from_str(&json).ok());
            add(&mut total, account.as_ref());
            match (by, &account) {
                (By::Model, Some(account)) => by_model(&mut lines, account),
                (By::Model, None) => add(line(&mut lines, "unknown"), None),
                (By::Run, _) => add(line(&mut lines, &run.id), account.as_ref()),
                (By::Story, _) => add(line(&mut lines, &story(&run)), account.as_ref()),
                (By::Agent, _) => add(line(&mut lines, &agent(&run)), account.as_ref()),
                (By::Day, _) => add(line(&mut lines, &day(&run)), account.as_ref()),
            }
        }
        match page.last() {
            Some(last) if page.len() == PAGE => {
                before = Some((last.request.at_ms, last.id.to_string()));
            }
            Some(_) | None => break,
        }
    }
    let by = match by {
        By::Run => "run",
        By::Story => "story",
        By::Agent => "agent",
        By::Day => "day",
        By::Model => "model",
    };
    let lines = lines.into_values().collect();
    Ok(Json(wire::UsageReport { by: by.to_owned(), lines, total }))
}

fn line<'a>(
    lines: &'a mut BTreeMap<String, wire::UsageLine>,
    key: &str,
) -> &'a mut wire::UsageLine {
    let new = || wire::UsageLine { key: key.to_owned(), ..wire::UsageLine::default() };
    lines.entry(key.to_owned()).or_insert_with(new)
}

fn add(line: &mut wire::UsageLine, account: Option<&Account>) {
    line.runs += 1;
    let Some(account) = account else {
        line.uncounted += 1;
        return;
    };
    line.shared += u64::from(account.shared_with.is_some());
    line.turns += account.turns;
    line.tool_turns += account.tool_turns;
    line.cost_usd += account.cost_usd.unwrap_or(0.0);
    add_tokens(&mut line.tokens, &account.tokens);
}

/// The story of a run: what it is a step of, or what a slot `STORY:AGENT` of somebody's is named
/// for. Slots of ours are nobody's story.
fn story(run: &KeptRun) -> String {
    if let Some(step) = &run.request.step {
        return format!("{}/{}", step.project, step.story);
    }
    match run.slot.split_once(':') {
        Some((story, _)) if story != "channel" => story.to_owned(),
        Some(_) | None => "none".to_owned(),
    }
}

/// Turns are not told by model: a run counts for each model it used.
fn by_model(lines: &mut BTreeMap<String, wire::UsageLine>, account: &Account) {
    for model in &account.models {
        let line = line(lines, if model.model.is_empty() { "unknown" } else { &model.model });
        line.runs += 1;
        line.shared += u64::from(account.shared_with.is_some());
        line.cost_usd += model.cost_usd;
        add_tokens(&mut line.tokens, &model.tokens);
    }
}

fn add_tokens(to: &mut wire::Tokens, from: &AccountTokens) {
    to.input = to.input.saturating_add(from.input);
    to.output = to.output.saturating_add(from.output);
    to.cache_read = to.cache_read.saturating_add(from.cache_read);
    to.cache_write = to.cache_write.saturating_add(from.cache_write);
}

/// The agent it was started as, else what runs, without its path.
fn agent(run: &KeptRun) -> String {
    if let Some(agent) = &run.request.agent {
        return agent.name.clone();
    }
    let program = run.request.command.first().map(|arg| arg.0.to_string_lossy().into_owned());
    let program = program.unwrap_or_default();
    program.rsplit('/').next().unwrap_or_default().to_owned()
}

/// The day a run was asked for, in UTC.
fn day(run: &KeptRun) -> String {
    Time(run.request.at_ms).to_string().chars().take(DAY_LENGTH).collect()
}
