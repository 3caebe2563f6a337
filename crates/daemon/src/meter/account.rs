//! What a run used, as plain data: kept beside its end, told to the daemon, shown.
//!
//! Owns: the shape of the account, and that it always fits where it has to go. Counts nothing.

use kennel_process::MAX_USAGE_BYTES;
use kennel_supervisor::Doing;
use kennel_transcript::{CostBasis, ModelUse, Standing, Tokens, Used};
use serde::{Deserialize, Serialize};

use super::files::FileAccount;
use crate::charge::Charge;

/// Models an account tells apart: it has to fit beside the proof.
const MAX_MODELS: usize = 8;
/// Characters of a reason or a name: the account has to fit beside the proof.
const MAX_TEXT_CHARS: usize = 300;

/// What a run used, as it is kept beside its end and shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Account {
    pub(crate) turns: u64,
    pub(crate) tool_turns: u64,
    pub(crate) subagent_turns: u64,
    pub(crate) tool_calls: u64,
    pub(crate) tokens: AccountTokens,
    pub(crate) cost_usd: Option<f64>,
    pub(crate) cost_basis: String,
    pub(crate) session: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) standing: String,
    /// How often it has begun to wait for a person.
    #[serde(default)]
    pub(crate) waits: u64,
    pub(crate) rate_limited_until: Option<u64>,
    /// The service refused, and has answered nothing since. Its client may have given up by then.
    #[serde(default)]
    pub(crate) rate_limited: bool,
    /// Whether the client's own files are read: `followed`, `not found`, `not known`.
    pub(crate) files: String,
    /// Responses of which only a placeholder is known.
    pub(crate) unconfirmed: u64,
    /// Lines or things that could not be read.
    pub(crate) unread: u64,
    pub(crate) trouble: Option<String>,
    /// Where each of the client's files stands: the first of them.
    #[serde(default)]
    pub(crate) followed: Vec<FileAccount>,
    /// Why the files are looked at by the clock and not when they change.
    #[serde(default)]
    pub(crate) by_timer: Option<String>,
    /// By model, as far as that is told: the first of them.
    #[serde(default)]
    pub(crate) models: Vec<ModelAccount>,
    /// What its descendants used, which is in no other field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) children: Option<Charge>,
    /// A run that worked in the same session at the same time: what either used counts for both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shared_with: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelAccount {
    pub(crate) model: String,
    pub(crate) tokens: AccountTokens,
    pub(crate) cost_usd: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AccountTokens {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) cache_read: u64,
    pub(crate) cache_write: u64,
}

/// What the agent does, by an account of its meter, and how often it has begun to wait. One that
/// does not read says nothing of it.
pub(crate) fn doing(account: &str) -> (Doing, u64) {
    let Ok(account) = serde_json::from_str::<Account>(account) else { return (Doing::Works, 0) };
    let doing = match account.standing.as_str() {
        "waiting" => Doing::Waits,
        "rate_limited" => {
            let until_ms = account.rate_limited_until.map(|seconds| seconds.saturating_mul(1000));
            Doing::RateLimited { until_ms }
        }
        _ => Doing::Works,
    };
    (doing, account.waits)
}

impl Account {
    pub(super) fn of(used: &Used) -> Self {
        let (cost_usd, cost_basis) = match &used.basis {
            CostBasis::Unknown => (None, "unknown".to_owned()),
            CostBasis::Said => (Some(used.usd), "said by the client".to_owned()),
            CostBasis::Priced { date } => (Some(used.usd), format!("tokens at prices of {date}")),
            CostBasis::Dearest { model, date } => {
                let basis = format!("{model:?} is not in the prices of {date}: as the dearest");
                (Some(used.usd), basis)
            }
        };
        let standing = match used.standing {
            Standing::Working => "working",
            Standing::Waiting(_) => "waiting",
            Standing::Retrying { .. } => "retrying",
            Standing::RateLimited { .. } => "rate_limited",
            Standing::Finishing => "finishing",
        };
        Self {
            turns: used.turns,
            tool_turns: used.tool_turns,
            subagent_turns: used.subagent_turns,
            tool_calls: used.tool_calls,
            tokens: AccountTokens::of(&used.tokens),
            cost_usd,
            cost_basis,
            session: used.session.clone(),
            model: used.model.clone(),
            standing: standing.to_owned(),
            waits: used.waits,
            rate_limited_until: used.rate_limited_until,
            rate_limited: used.rate_limited,
            files: String::new(),
            unconfirmed: used.unconfirmed,
            unread: used.broken_lines + used.too_long_lines + used.unknown,
            trouble: None,
            followed: Vec::new(),
            by_timer: None,
            models: used.models.iter().take(MAX_MODELS).map(ModelAccount::of).collect(),
            children: None,
            shared_with: None,
        }
    }

    /// As JSON, of a length that is taken. Names can be chosen by whoever writes a transcript: what
    /// is too much is left out, the numbers never are.
    pub(super) fn into_json(mut self) -> Option<String> {
        let texts = [&mut self.trouble, &mut self.by_timer, &mut self.session, &mut self.model];
        for text in texts.into_iter().flatten().chain([&mut self.cost_basis]) {
            if let Some((end, _)) = text.char_indices().nth(MAX_TEXT_CHARS) {
                text.truncate(end);
            }
        }
        loop {
            let json = serde_json::to_string(&self).ok()?;
            if json.len() <= MAX_USAGE_BYTES {
                return Some(json);
            }
            let left_out = self.models.pop().is_some()
                || self.followed.pop().is_some()
                || self.by_timer.take().is_some()
                || self.model.take().is_some()
                || self.trouble.take().is_some();
            if !left_out {
                // What is left is the basis of the cost and the session: text of bounded length.
                self.cost_basis.clear();
                self.session = None;
                return serde_json::to_string(&self).ok();
            }
        }
    }
}

impl ModelAccount {
    fn of(used: &ModelUse) -> Self {
        let tokens = AccountTokens::of(&used.tokens);
        Self { model: used.model.clone(), tokens, cost_usd: used.usd }
    }
}

impl AccountTokens {
    /// All of them. What a transcript says can be any number.
    pub(crate) fn all(&self) -> u64 {
        [self.output, self.cache_read, self.cache_write]
            .into_iter()
            .fold(self.input, u64::saturating_add)
    }

    fn of(tokens: &Tokens) -> Self {
        Self {
            input: tokens.input,
            output: tokens.output,
            cache_read: tokens.cache_read,
            cache_write: tokens.cache_write_5m.saturating_add(tokens.cache_write_1h),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_transcript::{Entry, History, Prices, Source, Tally, Usage};

    #[test]
    fn an_account_fits_whatever_names_and_numbers_a_transcript_has() {
        let mut tally = Tally::new(Prices::shipped(), History::Fresh);
        for n in 0..40_u64 {
            // Control characters take six bytes each in JSON.
            let model = format!("{n}{}", "\u{1}".repeat(250));
            tally.add(Source::Stdout, &Entry::Session(model.clone()));
            tally.add(Source::Stdout, &Entry::Model(model.clone()));
            let tokens = Tokens {
                input: u64::MAX,
                output: u64::MAX,
                cache_read: u64::MAX,
                cache_write_5m: u64::MAX,
                cache_write_1h: u64::MAX,
                web_searches: u64::MAX,
            };
            let usage =
                Usage { id: Some(n.to_string()), model: Some(model), tokens, ..Usage::default() };
            tally.add(Source::Stdout, &Entry::Usage(usage));
        }
        let mut account = Account::of(&tally.used());
        account.trouble = Some("\u{1}".repeat(5000));
        let files = std::iter::repeat_with(|| FileAccount {
            path: "/".repeat(200),
            state: "following".to_owned(),
            subagent: false,
        });
        account.followed = files.take(8).collect();
        let all = account.tokens.all();
        let json = account.into_json().expect("it is JSON");
        assert!(json.len() <= MAX_USAGE_BYTES, "{}", json.len());
        let read: Account = serde_json::from_str(&json).expect("it reads");
        assert_eq!((read.tokens.cache_write, all), (u64::MAX, u64::MAX));
        assert!(read.cost_usd.is_some_and(f64::is_finite), "{json}");
    }
}
