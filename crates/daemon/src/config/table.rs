//! A table of a file, read key by key: each is asked for once, with the type it must have, and what
//! nobody asked for is unknown. Owns the words about wrong types and unknown keys; knows no key.

use std::cell::RefCell;
use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::problem::{Problems, nearest};
use crate::units;

/// A value and where it stands.
pub(super) type Value<'a, 't> = &'a Spanned<DeValue<'t>>;

/// A table that is being read.
pub(super) struct Table<'a, 't> {
    /// What its keys belong to: `agent`.
    name: &'static str,
    table: &'a DeTable<'t>,
    span: Range<usize>,
    asked: RefCell<Vec<&'static str>>,
}

impl<'a, 't> Table<'a, 't> {
    pub(super) fn of(name: &'static str, table: &'a DeTable<'t>, span: Range<usize>) -> Self {
        Self { name, table, span, asked: RefCell::new(Vec::new()) }
    }

    /// Where it begins.
    pub(super) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// A key with what it belongs to.
    pub(super) fn full(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    /// The value of a key, which is known from here on.
    pub(super) fn value(&self, key: &'static str) -> Option<Value<'a, 't>> {
        self.know(key);
        self.table.get(key)
    }

    fn know(&self, key: &'static str) {
        let mut asked = self.asked.borrow_mut();
        if !asked.contains(&key) {
            asked.push(key);
        }
    }

    /// Where a key's value stands; the table itself if there is none.
    pub(super) fn place(&self, key: &str) -> Range<usize> {
        self.table.get(key).map_or_else(|| self.span(), Spanned::span)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Notes what is wrong with a key.
    pub(super) fn wrong(&self, to: &mut Problems<'_>, key: &str, message: impl Into<String>) {
        to.at(self.place(key), &self.full(key), message);
    }

    fn expected(&self, to: &mut Problems<'_>, key: &str, wanted: &str, found: &DeValue<'_>) {
        let found = kind_of(found);
        self.wrong(to, key, format!("this is {found}, and it has to be {wanted}"));
    }

    pub(super) fn text(&self, to: &mut Problems<'_>, key: &'static str) -> Option<String> {
        self.quoted(to, key, "text in quotes")
    }

    pub(super) fn flag(&self, to: &mut Problems<'_>, key: &'static str) -> Option<bool> {
        let value = self.value(key)?.get_ref();
        let flag = value.as_bool();
        if flag.is_none() {
            self.expected(to, key, "true or false", value);
        }
        flag
    }

    /// A whole number from `least` on.
    pub(super) fn number(
        &self,
        to: &mut Problems<'_>,
        key: &'static str,
        least: u64,
    ) -> Option<u64> {
        let value = self.value(key)?.get_ref();
        let number = value.as_integer().and_then(|n| {
            let digits = n.as_str().replace('_', "");
            u64::from_str_radix(&digits, n.radix()).ok()
        });
        let fits = number.filter(|n| *n >= least && i64::try_from(*n).is_ok());
        if fits.is_none() {
            match value.as_integer() {
                Some(n) => {
                    let n = n.as_str();
                    self.wrong(to, key, format!("{n} is not a whole number from {least} on"));
                }
                None => self.expected(to, key, &format!("a whole number from {least} on"), value),
            }
        }
        fits
    }

    pub(super) fn small_number(
        &self,
        to: &mut Problems<'_>,
        key: &'static str,
        least: u64,
    ) -> Option<u32> {
        let number = self.number(to, key, least)?;
        let small = u32::try_from(number).ok();
        if small.is_none() {
            self.wrong(to, key, format!("{number} is too large: it may be {}", u32::MAX));
        }
        small
    }

    /// An amount of money above 0.
    pub(super) fn money(&self, to: &mut Problems<'_>, key: &'static str) -> Option<f64> {
        let value = self.value(key)?.get_ref();
        let digits = value.as_float().map(|n| n.as_str());
        let digits = digits.or_else(|| value.as_integer().map(|n| n.as_str()));
        let Some(digits) = digits else {
            self.expected(to, key, "an amount above 0, like 2.50", value);
            return None;
        };
        let amount = digits.replace('_', "").parse::<f64>().ok();
        let amount = amount.filter(|usd| usd.is_finite() && *usd > 0.0);
        if amount.is_none() {
            self.wrong(to, key, format!("{digits} is not an amount above 0, like 2.50"));
        }
        amount
    }

    /// A duration as on the command line.
    pub(super) fn duration(&self, to: &mut Problems<'_>, key: &'static str) -> Option<Duration> {
        let text = self.quoted(to, key, "a duration in quotes, like \"15m\"")?;
        units::duration(&text)
            .map_err(|why| self.wrong(to, key, format!("{text:?} is no duration: {why}")))
            .ok()
    }

    /// A size as on the command line.
    pub(super) fn size(&self, to: &mut Problems<'_>, key: &'static str) -> Option<u64> {
        let text = self.quoted(to, key, "a size in quotes, like \"4G\"")?;
        units::size(&text)
            .map_err(|why| self.wrong(to, key, format!("{text:?} is no size: {why}")))
            .ok()
    }

    fn quoted(&self, to: &mut Problems<'_>, key: &'static str, wanted: &str) -> Option<String> {
        let value = self.value(key)?.get_ref();
        let text = value.as_str().map(str::to_owned);
        if text.is_none() {
            self.expected(to, key, wanted, value);
        }
        text
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(
        &self,
        to: &mut Problems<'_>,
        key: &'static str,
        words: &[(&'static str, T)],
    ) -> Option<T> {
        let text = self.text(to, key)?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
        if found.is_none() {
            let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.wrong(to, key, format!("{text:?} is none of {}", one_of(&text, &names)));
        }
        found
    }

    /// A list of text.
    pub(super) fn texts(&self, to: &mut Problems<'_>, key: &'static str) -> Option<Vec<String>> {
        let list = self.list(to, key, "a list of text, like [\"a\", \"b\"]")?;
        let mut texts = Vec::new();
        for item in list {
            match item.get_ref().as_str() {
                Some(text) => texts.push(text.to_owned()),
                None => {
                    let found = kind_of(item.get_ref());
                    let message = format!("{found} is in a list of text");
                    to.at(item.span(), &self.full(key), message);
                    return None;
                }
            }
        }
        Some(texts)
    }

    /// A command: a list of words, with at least the program.
    pub(super) fn command(&self, to: &mut Problems<'_>, key: &'static str) -> Option<Vec<String>> {
        if let Some(line) = self.table.get(key).and_then(|value| value.get_ref().as_str()) {
            self.know(key);
            self.wrong(to, key, as_a_list(line));
            return None;
        }
        let words = self.texts(to, key)?;
        if words.first().is_none_or(String::is_empty) {
            self.wrong(to, key, "a command begins with a program");
            return None;
        }
        Some(words)
    }

    /// A list of commands.
    pub(super) fn commands(
        &self,
        to: &mut Problems<'_>,
        key: &'static str,
    ) -> Option<Vec<Vec<String>>> {
        let list = self.list(to, key, "a list of commands, like [[\"make\", \"test\"]]")?;
        let mut commands = Vec::new();
        for item in list {
            let words = item.get_ref().as_array().and_then(words_of);
            match (words, item.get_ref().as_str()) {
                (Some(words), _) => commands.push(words),
                (None, Some(line)) => to.at(item.span(), &self.full(key), as_a_list(line)),
                (None, None) => {
                    let message = "a command is a list of words that begins with a program";
                    to.at(item.span(), &self.full(key), message);
                }
            }
        }
        Some(commands)
    }

    fn list(
        &self,
        to: &mut Problems<'_>,
        key: &'static str,
        wanted: &str,
    ) -> Option<&'a DeArray<'t>> {
        let value = self.value(key)?.get_ref();
        let list = value.as_array();
        if list.is_none() {
            self.expected(to, key, wanted, value);
        }
        list
    }

    /// A table of variables.
    pub(super) fn variables(
        &self,
        to: &mut Problems<'_>,
        key: &'static str,
    ) -> Option<Vec<(String, String)>> {
        let value = self.value(key)?.get_ref();
        let Some(table) = value.as_table() else {
            self.expected(to, key, "a table, like { NAME = \"value\" }", value);
            return None;
        };
        let mut variables = Vec::new();
        for (name, value) in table {
            let at = self.full(&format!("{key}.{}", name.get_ref()));
            let bad = name.get_ref().is_empty() || name.get_ref().contains(['=', '\0']);
            match value.get_ref().as_str() {
                Some(text) if !bad && !text.contains('\0') => {
                    variables.push((name.get_ref().to_string(), text.to_owned()));
                }
                Some(_) => to.at(name.span(), &at, "no variable can have this name and value"),
                None => {
                    let found = kind_of(value.get_ref());
                    to.at(value.span(), &at, format!("this is {found}, and has to be text"));
                }
            }
        }
        Some(variables)
    }

    /// A table in this one.
    pub(super) fn table(&self, to: &mut Problems<'_>, key: &'static str) -> Option<Table<'a, 't>> {
        let value = self.value(key)?;
        match value.get_ref().as_table() {
            Some(table) => Some(Table::of(key, table, value.span())),
            None => {
                self.expected(to, key, &format!("a table: [{key}]"), value.get_ref());
                None
            }
        }
    }

    /// The tables of a list in this one.
    pub(super) fn tables(&self, to: &mut Problems<'_>, key: &'static str) -> Vec<Table<'a, 't>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let wanted = format!("a list of tables: write [[{key}]]");
        let Some(list) = value.get_ref().as_array() else {
            self.expected(to, key, &wanted, value.get_ref());
            return Vec::new();
        };
        let mut tables = Vec::new();
        for item in list {
            match item.get_ref().as_table() {
                Some(table) => tables.push(Table::of(key, table, item.span())),
                None => {
                    let found = kind_of(item.get_ref());
                    to.at(item.span(), key, format!("this is {found} in {wanted}"));
                }
            }
        }
        tables
    }

    /// Notes every key that nobody asked for. `elsewhere` says of some what they are.
    pub(super) fn end(self, to: &mut Problems<'_>, elsewhere: &[(&str, &str)]) {
        let asked = self.asked.borrow();
        for (name, _) in self.table {
            let key = name.get_ref().as_ref();
            if asked.contains(&key) {
                continue;
            }
            let message = match elsewhere.iter().find(|(other, _)| *other == key) {
                Some((_, what)) => (*what).to_owned(),
                None => match nearest(key, &asked) {
                    Some(meant) => format!("there is no such key: is {meant} meant?"),
                    None => format!("there is no such key: there are {}", asked.join(", ")),
                },
            };
            to.at(name.span(), &self.full(key), message);
        }
    }
}

/// The words to choose from, the one that was probably meant first.
pub(super) fn one_of(word: &str, names: &[&str]) -> String {
    match nearest(word, names) {
        Some(meant) => format!("{}: is {meant} meant?", names.join(", ")),
        None => names.join(", "),
    }
}

fn as_a_list(line: &str) -> String {
    let words: Vec<String> = line.split_whitespace().map(|word| format!("{word:?}")).collect();
    let shell = format!("[\"sh\", \"-c\", {line:?}]");
    format!("a command is a list of words: [{}], or {shell} for a shell", words.join(", "))
}

fn words_of(list: &DeArray<'_>) -> Option<Vec<String>> {
    let words = list.iter().map(|item| item.get_ref().as_str().map(str::to_owned));
    let words: Vec<String> = words.collect::<Option<_>>()?;
    words.first().is_some_and(|program| !program.is_empty()).then_some(words)
}

fn kind_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
