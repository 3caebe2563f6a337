//! What tokens cost: a dated table, shipped with the program and overridable by its user.
//!
//! Owns the table, how a model is found in it, and the arithmetic. Amounts are whole picodollars,
//! so that sums are exact and taking back what was added leaves nothing behind. Never asks the
//! network: a price that changes while a run goes on would make its limit another.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::entry::Tokens;

/// The shipped table, as text.
const SHIPPED: &str = include_str!("../prices.json");

/// A dollar in the unit of the arithmetic.
pub(crate) const PICO_PER_USD: f64 = 1e12;

/// Picodollars per token at one dollar per million tokens.
const PICO_PER_UNIT: f64 = 1e6;

/// What one model costs, in United States dollars per million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Input that is in no cache.
    #[serde(rename = "in")]
    pub input: f64,
    /// Output.
    #[serde(rename = "out")]
    pub output: f64,
    /// Input from a cache; without it, like other input.
    #[serde(default)]
    pub cache_read: Option<f64>,
    /// Input to a cache for five minutes; without it, like other input.
    #[serde(default)]
    pub cache_write_5m: Option<f64>,
    /// Input to a cache for an hour; without it, twice other input.
    #[serde(default)]
    pub cache_write_1h: Option<f64>,
    /// What a request with a long prompt costs instead.
    #[serde(default)]
    pub above: Option<LongContext>,
}

/// What a request costs, all of it, whose prompt is longer than so many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongContext {
    /// Longer than this.
    pub tokens: u64,
    /// Input that is in no cache. What is written to a cache rises in the same proportion.
    #[serde(rename = "in")]
    pub input: f64,
    /// Output.
    #[serde(rename = "out")]
    pub output: f64,
    /// Input from a cache; without it, like other input.
    #[serde(default)]
    pub cache_read: Option<f64>,
}

/// A table of prices.
#[derive(Clone, Debug, PartialEq)]
pub struct Prices {
    date: String,
    source: String,
    /// Of one search, in dollars.
    web_search: f64,
    models: BTreeMap<String, Price>,
}

/// A price that was put on something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Priced {
    /// In United States dollars.
    pub usd: f64,
    /// Whether the model is in the table; else it was priced as the dearest that is.
    pub known: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    date: String,
    source: String,
    #[serde(rename = "unit")]
    _unit: String,
    web_search: f64,
    models: BTreeMap<String, Price>,
}

impl Prices {
    /// The table that is shipped with the program.
    #[expect(clippy::missing_panics_doc, reason = "the table is part of the program, and tested")]
    pub fn shipped() -> Self {
        let table: Table = serde_json::from_str(SHIPPED).expect("the shipped table is well-formed");
        Self {
            date: table.date,
            source: table.source,
            web_search: table.web_search,
            models: table.models,
        }
    }

    /// The same with some models priced otherwise, or added.
    #[must_use]
    pub fn with(mut self, overrides: impl IntoIterator<Item = (String, Price)>) -> Self {
        self.models.extend(overrides);
        self
    }

    /// The day the table is of, as `YYYY-MM-DD`.
    pub fn date(&self) -> &str {
        &self.date
    }

    /// Where the table comes from, in words.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The price of a model: by its very name, else by what is left of the name without the
    /// provider in front and the date behind. A name that only begins like a known one is another
    /// model.
    pub fn find(&self, model: &str) -> Option<&Price> {
        let short = plain_name(model);
        self.models.get(model).or_else(|| self.models.get(short)).or_else(|| {
            let same = |name: &&String| same_but_for_dots(name, short);
            self.models.keys().find(same).and_then(|name| self.models.get(name))
        })
    }

    /// What one response cost. All tokens have to be of one: prices rise with the length of a
    /// prompt.
    pub fn price(&self, model: &str, tokens: &Tokens) -> Priced {
        let (pico, known) = self.pico(model, tokens);
        Priced { usd: pico as f64 / PICO_PER_USD, known }
    }

    /// The same in picodollars.
    pub(crate) fn pico(&self, model: &str, tokens: &Tokens) -> (u64, bool) {
        let found = self.find(model);
        let pico = match found {
            Some(price) => price.pico(tokens),
            // Which of them that is depends on what was used.
            None => self.models.values().map(|price| price.pico(tokens)).max().unwrap_or(0),
        };
        let searches = times(tokens.web_searches, self.web_search * PICO_PER_USD);
        (pico.saturating_add(searches), found.is_some())
    }
}

impl Price {
    /// Whether every part of it is an amount. One below nothing would be counted as nothing.
    pub fn is_valid(&self) -> bool {
        let above =
            self.above.map(|above| [Some(above.input), Some(above.output), above.cache_read]);
        let own = [
            Some(self.input),
            Some(self.output),
            self.cache_read,
            self.cache_write_5m,
            self.cache_write_1h,
        ];
        let all = own.into_iter().chain(above.into_iter().flatten()).flatten();
        all.into_iter().all(|usd| usd.is_finite() && usd >= 0.0)
    }

    fn pico(&self, tokens: &Tokens) -> u64 {
        let (mut input, mut output) = (self.input, self.output);
        let mut read = self.cache_read.unwrap_or(input);
        let mut short = self.cache_write_5m.unwrap_or(input);
        let mut long = self.cache_write_1h.unwrap_or(input * 2.0);
        if let Some(above) = self.above.filter(|above| tokens.prompt() > above.tokens) {
            let rise = if input > 0.0 { above.input / input } else { 1.0 };
            (input, output) = (above.input, above.output);
            (short, long) = (short * rise, long * rise);
            read = above.cache_read.unwrap_or(input);
        }
        let parts = [
            (tokens.input, input),
            (tokens.output, output),
            (tokens.cache_read, read),
            (tokens.cache_write_5m, short),
            (tokens.cache_write_1h, long),
        ];
        let pico = parts.map(|(count, usd)| times(count, usd * PICO_PER_UNIT));
        pico.into_iter().fold(0, u64::saturating_add)
    }
}

/// A whole number of picodollars; a price that is no price is none.
fn times(count: u64, pico: f64) -> u64 {
    let each = if pico.is_finite() && pico > 0.0 { pico.round() as u64 } else { 0 };
    count.saturating_mul(each)
}

/// A name without what providers put around it: `anthropic/` and `us.anthropic.` in front,
/// `-20250929`, `@20250929`, `-2025-08-07`, `-v1:0`, `-latest` and `[1m]` behind.
fn plain_name(model: &str) -> &str {
    let name = model.rsplit('/').next().unwrap_or(model);
    let vendors = ["anthropic.", "openai.", "google."];
    let cut = vendors.iter().find_map(|vendor| name.split_once(vendor)).map(|(_, rest)| rest);
    let mut name = cut.unwrap_or(name);
    name = name.split('[').next().unwrap_or(name);
    name = name.split(':').next().unwrap_or(name);
    name = name.strip_suffix("-latest").unwrap_or(name);
    if let Some((rest, version)) = name.rsplit_once("-v")
        && version.bytes().all(|b| b.is_ascii_digit())
    {
        name = rest;
    }
    without_date(name)
}

fn without_date(name: &str) -> &str {
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if let Some((rest, date)) = name.rsplit_once(['-', '@'])
        && date.len() == 8
        && digits(date)
    {
        return rest;
    }
    let Some(at) = name.len().checked_sub(11).filter(|at| name.is_char_boundary(*at)) else {
        return name;
    };
    let parts: Vec<&str> = name[at..].split('-').collect();
    match parts.as_slice() {
        ["", year, month, day]
            if (year.len(), month.len(), day.len()) == (4, 2, 2)
                && [year, month, day].iter().all(|part| digits(part)) =>
        {
            &name[..at]
        }
        _ => name,
    }
}

/// `claude-sonnet-4.5` is how some write `claude-sonnet-4-5`.
fn same_but_for_dots(one: &str, other: &str) -> bool {
    let plain = |b: u8| if b == b'.' { b'-' } else { b.to_ascii_lowercase() };
    one.len() == other.len() && one.bytes().map(plain).eq(other.bytes().map(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usd(model: &str, tokens: Tokens) -> f64 {
        let priced = Prices::shipped().price(model, &tokens);
        assert!(priced.known, "{model}");
        priced.usd
    }

    #[test]
    fn a_response_costs_what_the_table_says() {
        // 100 * 2 + 1000 * 0.2 + 50 * 2.5 + 20 * 10 = 725 per million.
        let tokens = Tokens {
            input: 100,
            output: 20,
            cache_read: 1000,
            cache_write_5m: 50,
            ..Tokens::default()
        };
        assert_eq!(usd("claude-sonnet-5", tokens), 0.000725);
        // 1000 * 2 + 20000 * 0.2 + 3000 * 2.5 + 1000 * 4 + 5000 * 10 = 67500 per million.
        let tokens = Tokens {
            input: 1000,
            output: 5000,
            cache_read: 20000,
            cache_write_5m: 3000,
            cache_write_1h: 1000,
            ..Tokens::default()
        };
        assert_eq!(usd("claude-sonnet-5", tokens), 0.0675);
        // Ten dollars for a thousand searches.
        let tokens = Tokens { web_searches: 3, ..Tokens::default() };
        assert_eq!(usd("claude-sonnet-5", tokens), 0.03);
    }

    #[test]
    fn a_long_prompt_makes_the_whole_request_dearer() {
        let at = |input| Tokens { input, output: 1000, ..Tokens::default() };
        // 272000 * 4 + 1000 * 20; one token more: 272001 * 8 + 1000 * 30.
        assert_eq!(usd("gpt-5.6", at(272_000)), 1.108);
        assert_eq!(usd("gpt-5.6", at(272_001)), 2.206_008);
        // What is cached counts for the length: 1 * 2.5 + 200000 * 0.25.
        let tokens = Tokens { input: 1, cache_read: 200_000, ..Tokens::default() };
        assert_eq!(usd("gemini-2.5-pro", tokens), 0.050_002_5);
        // Claude Code has no such surcharge.
        assert_eq!(usd("claude-sonnet-4-5", at(300_000)), 0.915);
    }

    #[test]
    fn a_model_is_found_under_the_names_providers_give_it() {
        let prices = Prices::shipped();
        for (name, plain) in [
            ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
            ("anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
            ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
            ("claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
            ("claude-opus-5-5[1m]", "claude-opus-5-5"),
            ("openai/gpt-5-2025-08-07", "gpt-5"),
            ("openrouter/google/gemini-2.5-pro", "gemini-2.5-pro"),
        ] {
            assert_eq!(prices.find(name), prices.models.get(plain), "{name}");
            assert!(prices.find(name).is_some(), "{name}");
        }
        for name in ["", "opus", "gpt-5.2-codex-spark", "claude-sonnet", "mock", "gpt-5.20"] {
            assert_eq!(prices.find(name), None, "{name}");
        }
    }

    #[test]
    fn an_unknown_model_costs_as_much_as_the_dearest_and_says_so() {
        let prices = Prices::shipped();
        let tokens = Tokens { input: 100, output: 20, cache_read: 1000, ..Tokens::default() };
        let priced = prices.price("nobody-knows", &tokens);
        // 100 * 10 + 20 * 50 + 1000 * 1.
        assert_eq!(priced, Priced { usd: 0.003, known: false });
        for model in prices.models.keys() {
            assert!(prices.price(model, &tokens).usd <= priced.usd, "{model}");
        }
        is_dearest(&prices);
        // Also beside a model of the user's own, with whatever prices it has.
        let price = |json: &str| serde_json::from_str::<Price>(json).unwrap();
        for mine in [
            r#"{"in": 100, "out": 1}"#,
            r#"{"in":1,"out":1, "cache_write_5m":80,"above": {"tokens": 5, "in": 9, "out": 1}}"#,
            r#"{"in": 0, "out": 200, "above": {"tokens": 300000, "in": 30, "out": 300}}"#,
        ] {
            is_dearest(&Prices::shipped().with([("mine".to_owned(), price(mine))]));
        }
    }

    /// Of every kind of token, and whatever the length of the prompt.
    #[track_caller]
    fn is_dearest(prices: &Prices) {
        for count in [1, 6, 100_000, 200_001, 272_001, 1_000_000] {
            let kinds: [fn(u64) -> Tokens; 5] = [
                |input| Tokens { input, ..Tokens::default() },
                |output| Tokens { input: output, output, ..Tokens::default() },
                |cache_read| Tokens { cache_read, ..Tokens::default() },
                |cache_write_5m| Tokens { cache_write_5m, ..Tokens::default() },
                |cache_write_1h| Tokens { cache_write_1h, ..Tokens::default() },
            ];
            for tokens in kinds.map(|kind| kind(count)) {
                let most = prices.price("nobody-knows", &tokens).usd;
                for model in prices.models.keys() {
                    let usd = prices.price(model, &tokens).usd;
                    assert!(usd <= most, "{model}: {usd} of {most} for {tokens:?}");
                }
            }
        }
    }

    #[test]
    fn what_a_long_prompt_writes_to_a_cache_rises_with_the_rest() {
        // gpt-5.6 is 4 in and 5 for writing, and 8 in above 272000: 272001 * 10 and 1 * 8.
        let tokens = Tokens { input: 1, cache_write_5m: 272_001, ..Tokens::default() };
        assert_eq!(usd("gpt-5.6", tokens), 2.720_018);
        // An hour is twice the input where the table has no price for it: 272001 * 16.
        let tokens = Tokens { cache_write_1h: 272_001, ..Tokens::default() };
        assert_eq!(usd("gpt-5.6", tokens), 4.352_016);
    }

    #[test]
    fn a_user_may_price_a_model_otherwise() {
        let mine = Price {
            input: 1.0,
            output: 2.0,
            cache_read: None,
            cache_write_5m: None,
            cache_write_1h: None,
            above: None,
        };
        let prices = Prices::shipped().with([("mine".to_owned(), mine)]);
        let tokens = Tokens {
            input: 1,
            output: 1,
            cache_read: 1,
            cache_write_5m: 1,
            cache_write_1h: 1,
            ..Tokens::default()
        };
        // 1 + 2 + 1 + 1 + 2 per million.
        assert_eq!(prices.price("mine", &tokens), Priced { usd: 0.000007, known: true });
    }

    #[test]
    fn nothing_overflows() {
        let all = u64::MAX;
        let tokens = Tokens {
            input: all,
            output: all,
            cache_read: all,
            cache_write_5m: all,
            cache_write_1h: all,
            web_searches: all,
        };
        assert_eq!(Prices::shipped().pico("gpt-5", &tokens).0, u64::MAX);
    }
}
