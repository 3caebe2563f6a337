//! The front matter of a Markdown file: keys with scalars or lists of scalars, between two lines of
//! `---`. Owns how it is read; knows no key.
//!
//! A part of YAML, written here because the rest of it (anchors, tags, types that are guessed) has
//! no business in a story's head, and the crates that read all of it weigh more than this. What is
//! not of this part is refused with its line, never read as something else.

/// A value, and the line it stands in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// Nothing stands there.
    Empty,
    Scalar(String),
    List(Vec<String>),
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) line: usize,
    pub(super) message: String,
}

/// A file in its two parts.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    pub(super) entries: Vec<Entry>,
    /// What comes after the front matter.
    pub(super) body: &'a str,
}

/// Takes a file apart. Without front matter all of it is body.
pub(super) fn split(text: &str) -> Result<Parts<'_>, Vec<Fault>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = Lines { rest: text, number: 0 };
    if lines.next().is_none_or(|(_, first)| first.trim_end() != "---") {
        return Ok(Parts { entries: Vec::new(), body: text });
    }
    let (mut head, mut ends) = (Vec::new(), false);
    for (number, line) in lines.by_ref() {
        if matches!(line.trim_end(), "---" | "...") {
            ends = true;
            break;
        }
        head.push((number, line));
    }
    if !ends {
        let message = "the front matter that begins here has no end: put `---` under it".to_owned();
        return Err(vec![Fault { line: 1, message }]);
    }
    Ok(Parts { entries: entries(&head)?, body: lines.rest })
}

/// Lines with their numbers, from 1, and what is left behind them.
struct Lines<'a> {
    rest: &'a str,
    number: usize,
}

impl<'a> Iterator for Lines<'a> {
    type Item = (usize, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
        self.rest = rest;
        self.number += 1;
        Some((self.number, line.strip_suffix('\r').unwrap_or(line)))
    }
}

fn entries(head: &[(usize, &str)]) -> Result<Vec<Entry>, Vec<Fault>> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut faults = Vec::new();
    for (number, line) in head {
        let number = *number;
        let content = line.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        if let Err(message) = one(&mut entries, number, line) {
            faults.push(Fault { line: number, message });
        }
    }
    if faults.is_empty() { Ok(entries) } else { Err(faults) }
}

/// Reads one line: a key with what it is, or a further item of the list above.
fn one(entries: &mut Vec<Entry>, number: usize, line: &str) -> Result<(), String> {
    let content = line.trim();
    if let Some(item) = content.strip_prefix('-').filter(|item| item.starts_with([' ', '\t'])) {
        let item = scalar(item.trim())?;
        let Some(last) = entries.last_mut() else {
            return Err("a list needs a key above it".to_owned());
        };
        return match &mut last.value {
            Value::List(items) => {
                items.push(item);
                Ok(())
            }
            Value::Empty => {
                last.value = Value::List(vec![item]);
                Ok(())
            }
            Value::Scalar(_) => Err(format!("{} has a value already", last.key)),
        };
    }
    if line.starts_with([' ', '\t']) {
        return Err("this is nested, or goes on from the line above: write it in one line".into());
    }
    let (key, value) = match content.split_once(':') {
        Some((key, value)) if value.is_empty() || value.starts_with([' ', '\t']) => (key, value),
        Some(_) | None => return Err("write `key: value`".to_owned()),
    };
    let key = key.trim_end().trim_matches(['"', '\'']).to_owned();
    if let Some(first) = entries.iter().find(|entry| entry.key == key) {
        return Err(format!("{key} stands in line {} already", first.line));
    }
    let value = value_of(value.trim())?;
    entries.push(Entry { key, line: number, value });
    Ok(())
}

fn value_of(text: &str) -> Result<Value, String> {
    if text.is_empty() || text.starts_with('#') || text == "~" || text == "null" {
        return Ok(Value::Empty);
    }
    let Some(inner) = text.strip_prefix('[') else { return scalar(text).map(Value::Scalar) };
    let mut items = Vec::new();
    let mut rest = inner.trim_start();
    loop {
        if let Some(after) = rest.strip_prefix(']') {
            only_comment(after)?;
            return Ok(Value::List(items));
        }
        let (item, after) = match rest.chars().next() {
            None => return Err("the list has no `]` in this line".to_owned()),
            Some('"' | '\'') => quoted(rest)?,
            Some(_) => {
                let end = rest.find([',', ']', '#']).unwrap_or(rest.len());
                (plain(rest[..end].trim())?, &rest[end..])
            }
        };
        items.push(item);
        rest = after.trim_start();
        match rest.strip_prefix(',') {
            Some(after) => rest = after.trim_start(),
            None if rest.starts_with(']') => {}
            None => return Err("put `,` between items and `]` behind the last".to_owned()),
        }
    }
}

fn scalar(text: &str) -> Result<String, String> {
    if text.starts_with(['"', '\'']) {
        let (value, rest) = quoted(text)?;
        only_comment(rest)?;
        return Ok(value);
    }
    let end = text.find(" #").unwrap_or(text.len());
    plain(text[..end].trim_end())
}

/// A scalar without quotes. What YAML would take for something else is not guessed at.
fn plain(text: &str) -> Result<String, String> {
    match text.chars().next() {
        None => Err("an item is empty".to_owned()),
        Some('|' | '>') => {
            Err("texts over several lines are not read here: put them below the front matter"
                .into())
        }
        Some('{' | '[') => Err("a value is a scalar or a list of scalars".to_owned()),
        Some('&' | '*' | '!' | '%' | '@' | '`') => {
            Err(format!("put it in quotes: {:?}", text.replace('"', "'")))
        }
        Some(_) if text.contains(": ") || text.ends_with(':') => {
            Err(format!("a `:` in a value needs quotes around it: {text:?}"))
        }
        Some(_) => Ok(text.to_owned()),
    }
}

/// What is in quotes, and what comes behind them.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let mut chars = text.char_indices().peekable();
    let quote = chars.next().map_or('"', |(_, quote)| quote);
    let mut value = String::new();
    while let Some((at, c)) = chars.next() {
        match c {
            '\'' if quote == '\'' && chars.peek().is_some_and(|(_, next)| *next == '\'') => {
                chars.next();
                value.push('\'');
            }
            c if c == quote => return Ok((value, &text[at + c.len_utf8()..])),
            '\\' if quote == '"' => match chars.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, 't')) => value.push('\t'),
                Some((_, escaped @ ('"' | '\\' | '/'))) => value.push(escaped),
                Some(_) | None => return Err(r#"of escapes, \" \\ \/ \n and \t are read"#.into()),
            },
            c => value.push(c),
        }
    }
    Err("the quotes have no end in this line".to_owned())
}

fn only_comment(rest: &str) -> Result<(), String> {
    let rest = rest.trim_start();
    match rest.is_empty() || rest.starts_with('#') {
        true => Ok(()),
        false => Err(format!("nothing may come behind the value: {rest:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(head: &str) -> Result<Vec<Entry>, Vec<Fault>> {
        split(&format!("---\n{head}\n---\nbody")).map(|parts| parts.entries)
    }

    #[test]
    fn values_read_as_yaml_would_read_them() {
        let scalar = |text: &str| Value::Scalar(text.to_owned());
        let list = |items: &[&str]| Value::List(items.iter().map(|i| (*i).to_owned()).collect());
        for (line, value) in [
            ("k: login", scalar("login")),
            ("k:   two words  # why", scalar("two words")),
            ("k: a#b", scalar("a#b")),
            ("k: -3", scalar("-3")),
            ("k: http://x/y", scalar("http://x/y")),
            (r#"k: "a: \"b\" # c\n""#, scalar("a: \"b\" # c\n")),
            ("k: 'it''s' # so", scalar("it's")),
            ("k:", Value::Empty),
            ("k: # later", Value::Empty),
            ("k: ~", Value::Empty),
            ("k: []", list(&[])),
            ("k: [a, 'b, c', \"d\"] # e", list(&["a", "b, c", "d"])),
            ("k: [a,]", list(&["a"])),
            ("k:\n  - a\n  # not b\n  - 'c d'", list(&["a", "c d"])),
            ("k:\n- a\n- b # c", list(&["a", "b"])),
            ("\"k\": v", scalar("v")),
        ] {
            let read = head(line);
            let expected = vec![Entry { key: "k".to_owned(), line: 2, value }];
            assert_eq!(read, Ok(expected), "{line}");
        }
    }

    #[test]
    fn what_is_not_read_is_refused_with_its_line() {
        for (text, line, words) in [
            ("k: |\n  text", 2, "below the front matter"),
            ("k: {a: b}", 2, "scalar or a list"),
            ("k: &a b", 2, "quotes"),
            ("a: b\nk: *a", 3, "quotes"),
            ("k:\n  sub: v", 3, "nested"),
            ("just words", 2, "key: value"),
            ("k:v", 2, "key: value"),
            ("k: a\nk: b", 3, "line 2 already"),
            ("k: 'open", 2, "no end"),
            ("k: 'a' b", 2, "behind the value"),
            ("k: [a, b", 2, "`]`"),
            ("k: [a, [b]]", 2, "scalar or a list"),
            ("k: [a 'b' c", 2, "`]`"),
            ("k: a: b", 2, "needs quotes"),
            ("- a", 2, "key above"),
            ("k: v\n- a", 3, "a value already"),
            (r#"k: "\x41""#, 2, "escapes"),
        ] {
            let faults = head(text).expect_err(text);
            assert_eq!(faults[0].line, line, "{text}: {faults:?}");
            assert!(faults[0].message.contains(words), "{text}: {faults:?}");
        }
        let unended = split("---\nk: v\n").expect_err("it has no end");
        assert_eq!(unended[0].line, 1);
        assert_eq!(head("x\nk: v\ny").expect_err("two").len(), 2);
    }

    #[test]
    fn a_file_is_taken_apart_at_its_lines() {
        for (text, entries, body) in [
            ("", 0, ""),
            ("# Title\n---\nk: v\n---\n", 0, "# Title\n---\nk: v\n---\n"),
            ("---\n---\nbody\n", 0, "body\n"),
            ("\u{feff}---\r\nk: v\r\n---\r\nbody\r\n", 1, "body\r\n"),
            ("---\nk: v\n...", 1, ""),
            ("----\nk: v", 0, "----\nk: v"),
        ] {
            let parts = split(text).expect("it reads");
            assert_eq!((parts.entries.len(), parts.body), (entries, body), "{text:?}");
        }
    }
}
